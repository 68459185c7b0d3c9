"""Labels that silos disagree on, or that are not one a row."""

import pytest
import torch

from fedloom import TDCD, Placement, Run, Shard, Task, linear, partition
from fedloom.core.errors import DataError, ModelError


@pytest.mark.parametrize(("off", "agree"), [(0.0, True), (1e-8, True), (1e-3, False)])
def test_labels_of_silos_agree_but_for_rounding(off, agree):
    y = torch.linspace(1, 9, 4, dtype=torch.float64)
    shards = {
        silo: {"only": Shard([1, 2, 3, 4], torch.ones(4, 2), labels)}
        for silo, labels in (("bank", y), ("insurer", (y * (1 + off)).to(torch.float64)))
    }
    if agree:
        assert Placement.of(shards).size == 4
        return
    with pytest.raises(DataError, match="disagree between silos bank and insurer on 4 rows"):
        Placement.of(shards)


@pytest.mark.parametrize(
    ("loss", "shape", "problem", "message"),
    [
        ("squared", (4, 1, 2), ModelError, "the model gives 1 scores a row, the labels have shape"),
        ("squared", (4, 2), ModelError, "the model gives 1 scores a row, the labels have shape"),
        ("binary-cross-entropy", (4, 2), DataError, "labels must be 0 or 1, one a row"),
        ("cross-entropy", (4, 2), DataError, "labels must be whole numbers from 0, one a row"),
    ],
)
def test_labels_of_too_many_axes(loss, shape, problem, message):
    rows = partition({"a": torch.randn(4, 2)}, torch.ones(shape), {"a": 1})
    with pytest.raises(problem, match=message):
        Run(TDCD(batch=1), Task({"a": linear(2)}, loss), rows)
