"""Partitioners by name, ours and others': what they are given, and what they may give."""

import numpy as np
import pytest

from fedloom import Partition
from fedloom.config.runfile import RunFile
from fedloom.core.errors import SettingError
from fedloom.core.registry import horizontal_partitioners, vertical_partitioners
from fedloom.data.partition.vertical import Region
from tests.data.test_cut import pictures, table


@pytest.fixture(autouse=True)
def _forgotten():
    with vertical_partitioners.scratch(), horizontal_partitioners.scratch():
        yield


def every_other(data, silos, start: int = 0):
    """Columns, dealt like cards."""
    width = data.blocks["b0"].shape[1]
    return {silo: range(place + start, width, len(silos)) for place, silo in enumerate(silos)}


def drawn(data, clients, draw, low: int = 0):
    """A client for each row, at random."""
    return draw.integers(low, clients, data.size)


def test_a_vertical_one_of_ones_own():
    vertical_partitioners.register("dealt")(every_other)
    cut = Partition(silos=["p", "q"], vertical="dealt").cut(table())
    assert cut.parts == {"p": {"b0": (0, 2, 4, 6)}, "q": {"b0": (1, 3, 5)}}
    later = Partition(silos=["p", "q"], vertical={"name": "dealt", "start": 1}).cut(table())
    assert later.parts["p"] == {"b0": (1, 3, 5)}
    two = table(widths=(2, 3))
    vertical_partitioners.register("ends")(lambda data, silos: {"p": [0, 4], "q": [3]})
    assert Partition(silos=["p", "q"], vertical="ends").cut(two).parts == {
        "p": {"b0": (0,), "b1": (2,)},
        "q": {"b1": (1,)},
    }


def test_one_that_gives_parts_of_blocks():
    corner = Region(0, 2, 0, 3)
    vertical_partitioners.register("corner")(
        lambda data, silos: {"p": dict.fromkeys(data.blocks, corner), "q": {"view0": None}}
    )
    cut = Partition(silos=["p", "q"], vertical="corner").cut(pictures())
    assert cut.parts["p"]["view0"] == corner
    assert cut.parts["q"] == {"view0": None}


def test_a_horizontal_one_of_ones_own():
    horizontal_partitioners.register("drawn")(drawn)
    how = {"silos": ["p", "q"], "clients": [2, 3], "horizontal": "drawn"}
    cut, again = (Partition(**how, seed=4).cut(table()) for _ in range(2))
    assert cut == again
    assert cut.clients == {"p": ("0", "1"), "q": ("0", "1", "2")}
    assert set(cut.owner["q"].tolist()) == {0, 1, 2}
    assert cut != Partition(**how, seed=5).cut(table())
    last = Partition(**{**how, "horizontal": {"name": "drawn", "low": 1}}).cut(table())
    assert last.owner["p"].tolist() == [1] * 40
    alike = {**how, "clients": 2}
    apart = Partition(**alike).cut(table())
    assert apart.owner["p"].tolist() != apart.owner["q"].tolist()
    mirrored = Partition(**alike, mirrored=True).cut(table())
    assert mirrored.owner["p"].tolist() == mirrored.owner["q"].tolist()


def test_one_that_names_its_clients():
    halves = np.arange(40) % 2
    horizontal_partitioners.register("halves")(lambda data: (["even", "odd"], halves))
    cut = Partition(silos=1, horizontal="halves").cut(table())
    assert cut.clients["a"] == ("even", "odd")
    with pytest.raises(SettingError, match="makes"):
        Partition(silos=1, horizontal="halves", clients=5).cut(table())


def needy(data, silos, power: float):
    return every_other(data, silos)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("dealth", "did you mean 'dealt'"),
        ({"name": "dealt", "stat": 1}, "unknown setting 'stat'; did you mean 'start'"),
        ({"name": "dealt", "start": "no"}, "start: a whole number is expected"),
        ({"name": "contiguous", "start": 1}, "unknown setting 'start'; it takes none"),
        ({"start": 1}, "unknown vertical partitioner ''"),
        ("needy", "the setting 'power' is missing"),
        ({"name": "needy", "power": True}, "power: a number is expected"),
    ],
)
def test_what_is_refused_when_it_is_said(how, said):
    vertical_partitioners.register("dealt")(every_other)
    vertical_partitioners.register("needy")(needy)
    with pytest.raises(SettingError, match=said):
        Partition(vertical=how)


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ([1, 2], "columns of each silo are wanted"),
        ({"a": [0]}, "columns of each silo are wanted"),
        ({"a": [0], "b": [7]}, "silo 'b' gets a column that is not one of the set's, 0 to 6"),
        ({"a": [0], "b": []}, "silo 'b' gets no columns"),
    ],
)
def test_columns_that_cannot_be(gives, said):
    vertical_partitioners.register("mine")(lambda data, silos: gives)
    with pytest.raises(SettingError, match=said):
        Partition(vertical="mine").cut(table())


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ([0] * 39, "the index of its client is wanted for each row"),
        ([0.5] * 40, "the index of its client is wanted for each row"),
        ([3] * 40, "to clients 3 to 3; there are 3, counted from 0"),
        ([-1] * 40, "to clients -1 to -1"),
    ],
)
def test_owners_that_cannot_be(gives, said):
    horizontal_partitioners.register("mine")(lambda data, clients: gives)
    with pytest.raises(SettingError, match=said):
        Partition(horizontal="mine").cut(table())


FILE = """[data]
name = "iris"
[partition]
vertical = {name = "dealt", start = 1}
"""


def test_in_a_run_file():
    vertical_partitioners.register("dealt")(every_other)
    file = RunFile.parse(FILE.replace(", start = 1", ""))
    assert file.partition.vertical == {"name": "dealt", "start": 0}
    assert RunFile.parse(file.to_toml()).values == file.values
    for old, new, said in (
        ('"dealt"', '"delt"', "run file:4: partition.vertical.name: unknown vertical partitioner"),
        ("start", "stat", "run file:4: partition.vertical.stat: unknown key 'stat'"),
        ('name = "dealt", ', "", "partition.vertical: say its `name`"),
        ('{name = "dealt", start = 1}', '"delt"', "4: partition.vertical: unknown vertical"),
        ('{name = "dealt", start = 1}', "3", "4: partition.vertical: text or a table is expected"),
    ):
        with pytest.raises(SettingError, match=said):
            RunFile.parse(FILE.replace(old, new))
