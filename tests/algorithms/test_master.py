"""The master of asynchronous algorithms: theta_0's step, worked out from its table; which rows
count."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from fedloom import Run, Task, linear, lstm, mlp
from fedloom.algorithms import VAFL
from fedloom.core.tree import largest_difference
from fedloom.fabric.schedule import Moment, Recorded, Turn
from fedloom.testing import placement
from tests.fabric.test_visits import run


class TestTheMastersStep:
    """theta_0's step, worked out from its table before the round, where some rows do not count."""

    ORDER = Recorded({Moment(1): {"ash": ("1",)}}, 2, {
        0: [Turn(("ash",)), Turn(("birch",)), Turn(("cedar",))],
        1: [Turn(("ash",))],
    })  # fmt: skip

    def stepped(self, trained, silo, batch, lr, counts):
        """The head after a visit of a silo in round 1, of these rows of its minibatch."""
        (table,), part = (
            trained.fed.read(trained.state.desk).values(),
            trained.fed.parts.value[silo],
        )
        ids = torch.from_numpy(
            trained.fed.streams.common("minibatch", 1, 0).sample(trained.fed.size, batch)
        )
        ids = ids[counts[ids]]
        theta = trained.fed.read(trained.state.theta)[silo]
        widths = list(part.shapes.width.values())
        at = list(part.shapes.width).index(silo)
        joint = table.phi[ids].clone()
        own = part.block(theta.block, trained.placement.x[silo][ids].double())
        joint[:, sum(widths[:at]) : sum(widths[: at + 1])] = own
        head = {name: value.clone().requires_grad_() for name, value in table.head.items()}
        scores = torch.func.functional_call(part.head.module, head, (joint,))
        loss = torch.nn.functional.cross_entropy(scores, trained.placement.labels()[ids])
        gradients = torch.autograd.grad(loss, list(head.values()))
        return {k: (v - lr * g).detach() for (k, v), g in zip(head.items(), gradients, strict=True)}

    def after(self, algorithm, before, schedule):
        again = run(algorithm, head=True, schedule=schedule)
        again.restore(before.snapshot())
        (table,) = again.fed.read(again.fit(2).state.desk).values()
        return table.head

    def test_is_the_mean_over_the_rows_that_count(self):
        """Half of the visitor's rows are with a client that is not there."""
        algorithm = VAFL(lr=0.3, batch=20, visits=3)
        before = run(algorithm, head=True, schedule=self.ORDER).fit(1)
        there = before.placement.owner["ash"] != 1
        head = self.after(replace(algorithm, visits=1), before, self.ORDER)
        wanted = self.stepped(before, "ash", 20, 0.3, there)
        assert largest_difference(head, wanted) <= 1e-12
        everyone = self.stepped(before, "ash", 20, 0.3, torch.ones_like(there))
        assert largest_difference(head, everyone) > 1e-3

    def test_is_the_mean_over_the_visitors_who_have_rows(self):
        """Of two, nobody of one's clients is there: theta_0 moves as for the other alone."""
        algorithm = VAFL(lr=0.3, batch=20, visits=3)
        before = run(algorithm, head=True, schedule=self.ORDER).fit(1)
        gone = {Moment(1): {"birch": ("0", "1")}}
        two = Recorded(gone, 2, {1: [Turn(("ash", "birch"))]})
        head = self.after(replace(algorithm, group=2, visits=2), before, two)
        wanted = self.stepped(before, "ash", 20, 0.3, torch.ones(before.fed.size).bool())
        assert largest_difference(head, wanted) <= 1e-12

    @pytest.mark.parametrize("late", [False, True])
    def test_needs_every_silos_rows_and_labels(self, late):
        """Nothing was sent before training. `late`: clients who sent their embeddings are gone
        when it comes to labels."""
        algorithm = VAFL(lr=0.3, batch=None, visits=4, prime=False)
        gone = {Moment(0, "labels"): {"ash": ("0", "1", "2", "3")}} if late else {}
        turns = [Turn((silo,)) for silo in ("birch", "cedar", "ash", "birch")]
        heads = []
        for count in range(1, 5):
            order = Recorded(gone, 1, {0: turns[:count]})
            trained = run(replace(algorithm, visits=count), head=True, schedule=order).fit(1)
            (table,) = trained.fed.read(trained.state.desk).values()
            heads.append(table.head)
        apart = [largest_difference(a, b) for a, b in pairwise(heads)]
        assert [difference > 0 for difference in apart] == [False, not late, not late]


class Direction(torch.nn.Module):
    """Each silo's x / |x|, then a layer: no derivative where an embedding is zero."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(9, 3)

    def forward(self, x):
        groups = x.unflatten(1, (3, 3))
        return self.layer((groups / groups.norm(dim=2, keepdim=True)).flatten(1))


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("gone", ["0", "1", "3"])
def test_rows_that_never_came_are_zeros_and_do_no_harm(gone, engine):
    """Also where a head has no derivative at zeros: one of the clients has the first row."""
    blocks = {"ash": mlp(4, [5], 3), "birch": linear(3, 3), "cedar": lstm(2, 3, 3)}
    learn = Task(blocks, "cross-entropy", head=Direction, combine="concat")
    turns = [Turn((silo,)) for silo in ("birch", "cedar", "ash", "birch")]
    order = Recorded({Moment(0): {"ash": (gone,)}}, 1, {0: turns})
    algorithm = VAFL(lr=0.3, batch=None, visits=4, prime=False)
    trained = Run(algorithm, learn, placement(), schedule=order, engine=engine, seed=3)
    before = trained.algorithm.blocks(trained.fed, trained.algorithm.start(trained.fed))
    after = trained.algorithm.blocks(trained.fed, trained.fit(1).state)
    assert 0 < largest_difference(before["ash"].head, after["ash"].head) < 10
    assert 0 < largest_difference(before["birch"].block, after["birch"].block) < 10
