"""Damage on disk: whichever byte of a file of ours it hits, the file is refused by its name."""

import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from fedloom import TDCD, Run, Task, load_dataset, load_model
from fedloom.config.runfile import RunFile
from fedloom.core import tree
from fedloom.core.errors import DataError
from fedloom.core.topology import Client
from fedloom.data.partition.partition import Cut, Partition, place
from fedloom.data.tables.prepare import OneHot, Preparation, Scaled, SiloPreparation
from fedloom.deployment.agreement.agreement import Agreement
from fedloom.deployment.agreement.own_rows import (
    preparation_beside,
    read_preparation,
    read_rows,
    write_preparation,
    write_rows,
)
from fedloom.deployment.agreement.shared_facts import SharedFacts
from fedloom.records.checkpoint import load_checkpoint, save_checkpoint
from fedloom.records.history import Checkpoints

RUN = '[data]\nname = "iris"\n\n[partition]\nclients = 2\n\n[algorithm]\nbatch = 20\nrounds = 1\n'
ONE = Client("a", "0")


@pytest.fixture(scope="module")
def made():
    """A cut, a run on it, and what parties would agree on."""
    data = load_dataset("iris")
    cut = Partition(clients=2).cut(data)
    rows = place(data, cut)
    run = Run(TDCD(batch=20, lr=0.1), Task.of(rows), rows).fit(2)
    return cut, run, Agreement.of(RunFile.parse(RUN), SharedFacts.of(run))


def checkpoint(folder, made):
    path = folder / "checkpoint.safetensors"
    save_checkpoint(path, made[1].snapshot(), [], 0.0)

    def read():
        found = load_checkpoint(path)
        return {**found.tensors}, (found.round, found.ledger.to_json(), found.record.to_json())

    return path, read


def rows(folder, made):
    path = folder / "rows.safetensors"
    write_rows(path, made[1].placement.view([ONE]))

    def read():
        view = read_rows(path, ONE, made[2])
        return {"rows": view.rows[ONE], "x": view.x[ONE], "y": view.y[ONE]}, None

    return path, read


def agreement(folder, made):
    path = folder / "agreement.json"
    made[2].write(path)
    return path, lambda: ({}, Agreement.read(path).to_json())


def cut(folder, made):
    path = folder / "partition.json"
    made[0].save(path)
    return path, lambda: ({}, Cut.load(path).to_json())


def weights(folder, made):
    path = made[1].save(folder / "model") / "model.safetensors"

    def read():
        model = load_model(path.parent)
        blocks = {silo: dict(block.state_dict()) for silo, block in model.blocks.items()}
        return blocks, None

    return path, read


def about_the_model(folder, made):
    path = made[1].save(folder / "model") / "model.json"

    def read():
        model = load_model(path.parent)
        return {}, (model.how, model.combine, model.widths, model.classes, model.facts)

    return path, read


def preparation(folder, made):
    steps = Scaled("income", 31.5, 2.5, True), OneHot("job", ("cook", "clerk"), True, False)
    rows = folder / "rows.safetensors"
    write_preparation(rows, Preparation({"a": SiloPreparation(steps)}, "binary", ("no", "yes")))
    return preparation_beside(rows), lambda: ({}, read_preparation(rows))


KINDS = [checkpoint, rows, agreement, cut, weights, about_the_model, preparation]


def damages(whole, draw):
    """One bit anywhere (every byte of the beginning and of the end, others drawn), a piece that is
    zeros, less of it, more of it, nothing."""
    size = len(whole)
    places = {*range(min(size, 400)), *range(size - 64, size), *draw.sample(range(size), 200)}
    for at in sorted(places):
        changed = bytearray(whole)
        changed[at] ^= 1 << draw.randrange(8)
        yield f"a bit of byte {at}", bytes(changed)
    for at in draw.sample(range(size), 12):
        zeros = whole[:at] + b"\0" * min(512, size - at) + whole[at + 512 :]
        if zeros != whole:
            yield f"zeros from byte {at}", zeros
        yield f"cut after byte {at}", whole[:at]
    yield "one byte less", whole[:-1]
    yield "one byte more", whole + b"\0"
    yield "nothing", b""
    yield "zeros", b"\0" * size


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_damaged_file_is_refused_by_name(kind, made, tmp_path):
    path, read = kind(tmp_path, made)
    tensors, facts = read()
    whole, refused = path.read_bytes(), 0
    tried = list(damages(whole, random.Random(3)))
    for what, damaged in tried:
        path.write_bytes(damaged)
        try:
            found = read()
        except DataError as problem:
            refused += str(path) in str(problem)
            continue
        assert tree.largest_difference(found[0], tensors) == 0, what
        assert found[1] == facts, what
    assert refused >= len(tried) - (71 if kind is cut else 0)  # a cut need not have a digest
    path.write_bytes(whole)
    assert read()[1] == facts


def test_tensors_stay_safetensors(made, tmp_path):
    """Other tools read them as ever."""
    for kind in (checkpoint, rows, weights):
        path, _ = kind(tmp_path / kind.__name__, made)
        assert all(isinstance(a, torch.Tensor) for a in load_file(path).values())


def test_a_cut_that_somebody_wrote_by_hand_needs_no_digest(made, tmp_path):
    path, _ = cut(tmp_path, made)
    lines = [line for line in path.read_text().splitlines() if "sha256:" not in line]
    path.write_text("\n".join(lines))
    assert Cut.load(path) == made[0]


def saved(folder, made, *rounds, keep=2):
    """Checkpoints that differ by their round."""
    kept = Checkpoints(folder, keep)
    for round in rounds:
        kept.save(replace(made[1].snapshot(), round=round), [], 0.0)
    return kept


def test_the_last_checkpoints_are_kept(made, tmp_path):
    saved(tmp_path, made, 5, 10, 15, 20, keep=3)
    names = sorted(path.name for path in tmp_path.iterdir())
    plain = "checkpoint.safetensors"
    assert names == ["checkpoint-10.safetensors", "checkpoint-15.safetensors", plain]
    assert load_checkpoint(tmp_path / "checkpoint-15.safetensors").round == 15
    assert load_checkpoint(tmp_path / plain).round == 20
    saved(tmp_path, made, 12, keep=3)  # made again: what came after it is to come again
    assert Checkpoints(tmp_path).latest(pytest.fail).round == 12
    assert list(Checkpoints(tmp_path).older()) == [10]


def test_the_one_before_takes_the_place_of_a_damaged_one(made, tmp_path):
    kept, problems = saved(tmp_path, made, 5, 10), []
    path = kept.newest
    path.write_bytes(path.read_bytes()[:-1])
    again = Checkpoints(tmp_path)
    assert again.latest(problems.append).round == 5
    assert [str(path) in str(problem) for problem in problems] == [True]
    again.save(replace(made[1].snapshot(), round=6), [], 0.0)  # the damaged one is kept by no name
    for path in (kept.newest, kept.numbered(5)):
        load_checkpoint(path)
    for path in (kept.newest, kept.numbered(5)):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="no earlier checkpoint is whole: restore the folder"):
        Checkpoints(tmp_path).latest(pytest.fail)


def test_a_system_without_second_names(made, tmp_path, monkeypatch):
    def none(*given):
        raise OSError("not supported")

    monkeypatch.setattr("fedloom.core.files.os.link", none)
    saved(tmp_path, made, 5, 10)
    assert load_checkpoint(tmp_path / "checkpoint-5.safetensors").round == 5
