"""Validation rows: a share of the training rows, the same whoever draws them."""

import numpy as np
import pytest
import torch

from fedloom import TDCD, Partition, Run, Task, load_dataset
from fedloom.config.runfile import RunFile
from fedloom.core.errors import DataError, SettingError
from fedloom.data.validation import validation_rows
from fedloom.runs.build import build_data


@pytest.fixture(scope="module")
def data():
    return Partition(clients=[2, 3]).place(load_dataset("digits").some(200))


def test_rows_go_by_their_ids_alone_in_any_order():
    ids = [f"row {k}" for k in range(100)]
    mask = validation_rows(ids, 0.3)
    assert mask.sum() == 30
    order = np.random.default_rng(0).permutation(100)
    assert (validation_rows([ids[k] for k in order], 0.3) == mask[order]).all()
    more = validation_rows(ids, 0.5)
    assert (more >= mask).all()  # a larger share has all rows of a smaller one


def test_whole_numbers_are_their_text():
    assert (
        validation_rows([7, 8, 9, 10], 0.5) == validation_rows(["7", "8", "9", "10"], 0.5)
    ).all()


def test_at_least_one_row_is_kept_and_one_is_left():
    assert validation_rows("abc", 0.01).sum() == 1
    with pytest.raises(DataError, match="leaves none to train on"):
        validation_rows("abc", 0.99)


def test_training_and_validation_rows_are_those_that_were_for_training(data):
    held = data.with_validation(0.25)
    assert held.validation.size == 50
    assert held.train.size == 150
    assert sorted([*held.train.ids, *held.validation.ids]) == sorted(data.train.ids)
    assert held.test is data.test
    first = {
        silo: data.train.x[silo][np.isin(data.train.ids, held.validation.ids)] for silo in "ab"
    }
    assert all(torch.equal(held.validation.x[silo], first[silo]) for silo in "ab")
    assert held.summary()["rows"] == {"train": 150, "validation": 50, "test": data.test.size}
    assert "validation" not in data.summary()["rows"]
    with pytest.raises(SettingError, match="validation rows already"):
        held.with_validation(0.1)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_share_is_between_0_and_1(data, share):
    with pytest.raises(SettingError, match="above 0 and below 1"):
        data.with_validation(share)
    with pytest.raises(SettingError, match="validation"):
        RunFile.parse(f'[data]\nname = "digits"\nvalidation = {share}')


def test_a_run_evaluates_them_and_keeps_them_in_records(data):
    held = data.with_validation(0.25)
    run = Run(TDCD(local_steps=1, batch=20), Task.of(held, "linear"), held).fit(2, every=1)
    last = run.records[-1].validation
    assert last["loss"] == run.loss("validation")
    assert last["accuracy"] == run.evaluate("validation")["accuracy"]
    assert run.predict("validation").shape == (50, 10)
    assert run.predict("all").shape[0] == 200 + (data.test.size)
    plain = Run(TDCD(local_steps=1, batch=20), Task.of(data, "linear"), data).fit(1, every=1)
    assert plain.records[-1].validation is None
    assert "validation" not in plain.records[-1].to_json()
    with pytest.raises(SettingError, match="no validation rows"):
        plain.evaluate("validation")


def test_a_run_file_keeps_them_back():
    text = '[data]\nname = "digits"\ntake = 200\n'
    assert build_data(RunFile.parse(text)).validation is None
    held = build_data(RunFile.parse(text, ["data.validation=0.25"]))
    assert held.validation.size == 50
    assert held.train.size == 150


def test_copies_of_a_thing_are_not_split():
    text = '[data]\nname = "digits"\nvalidation = 0.2\n[partition.views]\nx = [0]\ny = [1]\n'
    with pytest.raises(SettingError, match="copies of one thing"):
        RunFile.parse(text)
