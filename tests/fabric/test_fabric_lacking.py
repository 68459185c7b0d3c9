"""The fabric where a client lacks a value, or a value is of another kind; every engine alike."""

import pytest
import torch

from fedloom.core.errors import ProtocolError
from fedloom.core.topology import Client
from fedloom.fabric.schedule import Moment
from fedloom.testing import placement
from tests.fabric.test_fabric import (
    FEATURES,
    MORE,
    VALUE,
    TestAbsence,
    add,
    both,
    count,
    number,
    rows_of,
)

GONE = TestAbsence.GONE
del TestAbsence  # its tests are collected there


@pytest.mark.parametrize("order", [1, -1])
def test_work_is_done_where_all_that_it_takes_is(order):
    for fed in both(GONE):
        batch_k, _ = fed.minibatch(torch.arange(36))
        n_k = fed.at_clients(count, batch_k)  # at everyone
        v_k = fed.to_clients(MORE, fed.at_hubs(number, fed.part))  # not at ash/0, which is away
        results = fed.read(fed.at_clients(add, *(v_k, n_k)[::order]))
        assert Client("ash", "0") not in results
        assert len(results) == 8


def test_who_has_no_value_does_not_answer():
    """It was away when that came, and is there in the next round: out for the rest of it."""
    for fed in both(GONE):
        hub = fed.at_hubs(number, fed.part)
        n_k = fed.at_clients(count, fed.minibatch(torch.arange(36))[0])
        old_k = fed.at_clients(add, fed.to_clients(MORE, hub), n_k)  # not at ash/0, which is away
        fed.begin(1)
        got = fed.read(fed.mean(VALUE, old_k, otherwise=hub))
        rows = torch.bincount(placement().owner["ash"], minlength=4)[1:].double()
        assert float(got["ash"]) == pytest.approx(3 + float(rows.mean()))
        assert fed.record.dropped[Moment(1, "value")] == {"ash": ("0",)}
        assert Client("ash", "0") not in fed.read(fed.to_clients(MORE, hub))


def shorter(batch):
    return batch.x.float()


def test_rows_of_another_precision_are_refused():
    for fed in both():
        batch_k, where = fed.minibatch(torch.arange(36))
        fed.gather(FEATURES[0], fed.at_clients(rows_of, batch_k), where)
        with pytest.raises(ProtocolError, match=r"float32; agreed was .*float64"):
            fed.gather(FEATURES[1], fed.at_clients(shorter, batch_k), where)
