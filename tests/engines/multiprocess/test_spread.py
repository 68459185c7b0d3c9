"""The assignment of clients to ranks, and what goes between processes; without any processes."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedloom.core import tree
from fedloom.engines.multiprocess.engine import assign_ranks, checksum
from fedloom.engines.multiprocess.parcels import packed, unpacked
from fedloom.engines.multiprocess.ranks import joined
from fedloom.engines.stacked.axis import Axis
from fedloom.engines.stacked.sizing import ChunkSizing

CPU = torch.device("cpu")


class Pair(NamedTuple):
    left: dict
    right: tuple


def shared(counts, rows, ranks, cost=None):
    axis = Axis({f"s{j}": tuple(map(str, range(k))) for j, k in enumerate(counts)})
    costs = {silo: cost or ChunkSizing(8, 4, 1 << 20, None) for silo in axis.span}
    rank_of = assign_ranks(axis, np.asarray(rows), costs, ranks)
    return [rank_of[span] for span in axis.span.values()]


def test_silos_of_one_client_are_spread():
    assert sorted(int(assigned[0]) for assigned in shared([1, 1, 1, 1], [9, 9, 9, 9], 4)) == [
        0,
        1,
        2,
        3,
    ]
    assert [assigned.tolist() for assigned in shared([1, 1], [9, 1], 3)] == [[0], [1]]


def test_every_silo_is_shared_and_ranks_have_alike():
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 50, 3 * 40)
    ranks_by_silo = shared([40, 40, 40], rows, 3, ChunkSizing(0, 1, 1 << 20, None))
    for j, home in enumerate(ranks_by_silo):
        loads = np.bincount(home, rows[40 * j : 40 * (j + 1)])
        assert loads.max() - loads.min() <= 5
    loads = np.bincount(np.concatenate(ranks_by_silo), rows)
    assert loads.max() - loads.min() <= 5


def test_parcels():
    parcel = {
        3: Pair({"w": torch.randn(2, 3), "n": torch.tensor(4)}, (torch.tensor([True]), None)),
        5: [torch.zeros(0, 2, dtype=torch.float64), torch.ones(3, dtype=torch.bfloat16), "word"],
    }
    back = unpacked(packed(parcel), CPU)
    assert tree.signature(back) == tree.signature(parcel)
    assert isinstance(back[3], Pair)
    assert tree.largest_difference(back, parcel) == 0
    back[3].left["w"] += 1  # they are its own
    assert unpacked(packed({}), CPU) == {}


def test_parcels_have_no_code():
    with pytest.raises(TypeError, match="cannot go"):
        packed({"f": print})
    head = b'{"of": "subprocess:Popen", "parts": []}'
    with pytest.raises(TypeError, match="no kind of tuple"):
        unpacked(len(head).to_bytes(8, "big") + head, CPU)


def test_a_bit_changes_the_checksum():
    a = {"w": torch.randn(5), "b": (torch.randn(2, dtype=torch.float64), torch.tensor(True))}
    b = tree.copy(a)
    assert checksum(a) == checksum(b)
    b["w"][3] = torch.nextafter(b["w"][3], torch.tensor(9.0))
    assert checksum(a) != checksum(b)


def test_one_process_is_as_without(monkeypatch):
    with joined() as ranks:
        assert ranks is None
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with joined() as ranks:
        assert ranks is None
