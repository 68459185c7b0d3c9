"""Cuts as files have them: small, of their own data only, and what they were."""

import base64
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.core.errors import DataError
from fedloom.data.catalog import load
from fedloom.data.partition.partition import Cut, Partition, place
from tests.data.test_cut import pictures, table


def test_a_saved_cut_is_small_and_fits_its_own_data_only(tmp_path):
    data = load("synthetic", rows=60_000, features=4)
    cut = Partition(clients=[10, 100]).cut(data)
    cut.save(tmp_path / "cut.json")
    assert (tmp_path / "cut.json").stat().st_size < 150_000
    assert Cut.load(tmp_path / "cut.json") == cut
    for rows in (np.arange(1000), np.arange(data.size)[::-1]):
        with pytest.raises(DataError, match="other rows"):
            place(data.rows(rows), cut)
    other = Partition().cut(pictures())
    with pytest.raises(DataError, match="no block 'view0'"):
        place(replace(pictures(), blocks={"x": torch.ones(12, 3)}), other)
    with pytest.raises(DataError, match="no such region"):
        place(replace(pictures(), blocks={"view0": torch.ones(12, 3)}), other)
    flat = Partition().cut(table())
    with pytest.raises(DataError, match="lacks columns"):
        place(replace(table(), blocks={"b0": torch.ones(40, 3)}, columns={}), flat)


@pytest.mark.parametrize(("clients", "kind"), [(3, "<u1"), (256, "<u1"), (257, "<u2")])
def test_a_saved_cut_stays_what_it_is(clients, kind):
    """As files have it: owners packed, in as few bytes as their number needs."""
    owner = np.arange(2 * clients) % clients
    packed = base64.b64encode(zlib.compress(owner.astype(kind).tobytes())).decode()
    names = [f"c{k}" for k in range(clients)]
    silo = {"parts": {"b0": [0, 2], "b1": None}, "clients": names, "owner": packed}
    saved = {"format": 1, "data": "x", "ids": "7", "labels_at": ["a"], "silos": {"a": silo}}
    cut = Cut.from_json(saved)
    assert np.array_equal(cut.owner["a"], owner)
    assert cut.parts == {"a": {"b0": (0, 2), "b1": None}}
    again = cut.to_json()["silos"]["a"]["owner"]
    assert np.array_equal(np.frombuffer(zlib.decompress(base64.b64decode(again)), kind), owner)


def test_a_damaged_file_is_no_cut(tmp_path):
    good = Partition().cut(table()).to_json()
    silos = good["silos"]
    alone = {**silos["a"], "clients": ["0"]}
    bad = [
        {},
        {**good, "format": 9},
        {**good, "labels_at": ["z"]},
        {**good, "silos": {**silos, "a": {**silos["a"], "owner": "AAAA"}}},
        {**good, "silos": {**silos, "a": alone}},
        {**good, "silos": {**silos, "a": {**silos["a"], "parts": {}}}},
    ]
    for number, content in enumerate(bad):
        (tmp_path / f"{number}").write_text(json.dumps(content))
        with pytest.raises(DataError, match="cannot be read as a cut"):
            Cut.load(tmp_path / f"{number}")
    with pytest.raises(DataError, match="cannot be read as a cut"):
        Cut.load(tmp_path / "nowhere")
