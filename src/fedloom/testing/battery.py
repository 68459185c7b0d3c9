"""The battery: what every algorithm must pass, by being registered.

Each check takes an algorithm (one of its `examples()`) and returns the largest difference it found,
or raises AssertionError. Other packages can run it on their own:

    import pytest
    from fedloom.testing import CHECKS, examples_of

    @pytest.mark.parametrize("algorithm", examples_of(Mine), ids=str)
    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_battery(check, algorithm):
        check(algorithm)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..algorithms.contract import Algorithm
from ..algorithms.verification.battery_cases import cases
from ..algorithms.verification.costs import cost
from ..core import tree
from ..core.topology import Party
from ..data.placement import Placement, Shard
from ..engines.limits import Limits
from ..engines.party.in_threads import one_silo_each, run_in_threads
from ..engines.stacked.engine import StackedEngine
from ..fabric.engine import Engine
from ..fabric.schedule import START, Bools, Drawn, Everyone, Moment, Recorded, Schedule, Scripted
from ..models.task import Task
from ..runs.loop import play
from ..runs.run import Run
from .samples import CLASSES, alike, sample_of

ROUNDS = 3
TOLERANCE = 1e-12

AlgorithmCheck = Callable[[Algorithm], float]
CHECKS: dict[str, AlgorithmCheck] = {}
"""The checks by name."""


def _check(f: AlgorithmCheck) -> AlgorithmCheck:
    CHECKS[f.__name__] = f
    return f


def _run(
    algorithm: Algorithm,
    rows: Placement | None = None,
    learn: Task | None = None,
    rounds: int = ROUNDS,
    **options: Any,
) -> Run:
    usual, place = sample_of(algorithm)
    run = Run(
        algorithm,
        learn or usual,
        rows or place,
        **{"precision": "float64", "seed": 3, **options},
    )
    return run.fit(rounds)


def _blocks(run: Run) -> dict[str, Any]:
    return run.algorithm.blocks(run.fed, run.state)


def _differ(a: Run, b: Run) -> float:
    """Between the blocks of two runs and, where it is one algorithm, all of their states."""
    worst = tree.largest_difference(_blocks(a), _blocks(b))
    if type(a.algorithm) is type(b.algorithm) and a.placement.topology == b.placement.topology:
        first, second = (_read(run) for run in (a, b))
        worst = max(worst, tree.largest_difference(first, second))
    return worst


def _read(run: Run) -> dict[str, Any]:
    fields = run.state._asdict().items()
    return {name: dict(sorted(run.fed.read(v).items())) for name, v in fields}


def _same(difference: float, tolerance: float, what: str) -> float:
    assert difference <= tolerance, f"{what}: differs by {difference:.3g}, allowed is {tolerance:g}"
    return difference


def _tasks(algorithm: Algorithm) -> Iterator[Task]:
    yield sample_of(algorithm)[0]
    if algorithm.takes_head and not algorithm.needs_server:
        yield sample_of(algorithm, head=True)[0]


@dataclass(frozen=True)
class _Noting(Everyone):
    """Everyone is there; at which upward moves each silo's clients were asked for is noted."""

    asked: dict[str, list[Moment]] = field(default_factory=dict)

    def answers(self, moment: Moment, silo: str, clients: Sequence[str]) -> Bools:
        if moment.kind != START:
            self.asked.setdefault(silo, []).append(moment)
        return super().answers(moment, silo, clients)


def _schedules(algorithm: Algorithm) -> dict[str, Schedule]:
    """Everyone; absent from the start; out between one upward move and the next; a silo empty."""
    noted = _Noting()
    dry = _run(algorithm, engine="reference", schedule=noted)
    silos = dry.placement.topology.clients
    late: dict[Moment, dict[str, list[str]]] = {}
    for silo, moments in noted.asked.items():  # of asynchronous ones some may not visit in a round
        of_round = {round: [m for m in moments if m.round == round] for round in (1, 2)}
        if all(of_round.values()):
            late = {when: {silo: [silos[silo][1]]} for when in (of_round[1][-1], of_round[2][0])}
            break
    first, everyone = next(iter(silos.items()))
    return {
        "everyone": Everyone(),
        "drawn": Drawn(0.6, seed=1),
        "out in mid-round": Scripted(late),
        "nobody in a silo": Scripted({Moment(1): {first: everyone}}),
    }


POOLED = Limits(few_rows=0)  # however few they are


@_check
def engines_agree(algorithm: Algorithm) -> float:
    """(1) Stacked equals reference in float64, for any chunk and any absence, also where the rows
    of a silo are computed at once, as are those of larger minibatches."""
    worst = 0.0
    for learn in _tasks(algorithm):
        for name, schedule in _schedules(algorithm).items():
            right = _run(algorithm, learn=learn, engine="reference", schedule=schedule)
            assert name == "everyone" or right.record.dropped, f"{name}: everyone was there"
            for chunk in (1, 2, None) if name == "everyone" else (2, None):
                fast = _run(algorithm, learn=learn, chunk=chunk, schedule=schedule, limits=POOLED)
                what = f"chunk {chunk} against reference, {name}"
                worst = max(worst, _same(_differ(fast, right), TOLERANCE, what))
                assert fast.record == right.record, f"{what}: who answered"
    if (
        cases.of(type(algorithm)).sample is None
        and not algorithm.one_silo
        and not algorithm.needs_server
    ):
        learn, rows = alike()
        for name in ("everyone", "out in mid-round"):
            schedule = _schedules(algorithm)[name]
            right = _run(algorithm, rows, learn, engine="reference", schedule=schedule)
            fast = _run(algorithm, rows, learn, schedule=schedule)
            difference = _differ(fast, right)
            worst = max(worst, _same(difference, TOLERANCE, f"silos that are alike, {name}"))
            assert fast.record == right.record, f"{name}: who answered, in silos that are alike"
    return worst


@_check
def parties_alone(algorithm: Algorithm) -> float:
    """(2) Each party alone, knowing only its own, equals all together to the bit."""
    learn, rows = sample_of(algorithm, head=algorithm.takes_head)
    for name, schedule in _schedules(algorithm).items():
        right = _run(algorithm, rows, learn, engine="reference", schedule=schedule)
        shared = [one_silo_each(rows), _crosswise(rows)] if name == "drawn" else []
        for groups in (None, *shared):
            apart = run_in_threads(
                lambda fed: _played(fed, algorithm),
                right.task,
                right.shapes,
                rows,
                seed=3,
                schedule=schedule,
                groups=groups,
            )
            for member in algorithm.State._fields:
                by_party: dict[Any, Any] = {}
                for group, engine in apart.engines.items():
                    by_party.update(engine.read(getattr(apart.states[group], member)))
                reference = right.fed.read(getattr(right.state, member))
                by_party = {party: by_party[party] for party in reference}
                what = f"{member} of parties alone against together"
                _same(tree.largest_difference(by_party, reference), 0.0, what)
            assert list(apart.ledger) == list(right.ledger), "ledgers of parties alone"
            assert apart.record == right.record, "records of parties alone"
    return 0.0


def _played(fed: Engine, algorithm: Algorithm) -> Any:
    *_, (_, state) = play(fed, algorithm, ROUNDS)
    return state


def _crosswise(rows: Placement) -> list[list[Party]]:
    """Three hosts that each have parties of several silos, and no whole silo."""
    hosts: list[list[Party]] = [[], [], []]
    for number, party in enumerate(rows.topology.parties):
        hosts[number % 3].append(party)
    return hosts


@_check
def ledgers(algorithm: Algorithm) -> float:
    """(3) Ledgers are equal, and equal to the algorithm's closed formula."""
    for learn in _tasks(algorithm):
        right = _run(algorithm, learn=learn, engine="reference")
        fast = _run(algorithm, learn=learn)
        assert list(fast.ledger) == list(right.ledger), "ledgers of the two engines"
        for round in range(ROUNDS):
            wanted = cost(algorithm, right.facts(_holders(right, round), round))
            assert right.ledger.of_round(round) == wanted, f"round {round}: the closed formula"
        partial = Drawn(0.5, seed=2)
        right = _run(algorithm, learn=learn, engine="reference", schedule=partial)
        fast = _run(algorithm, learn=learn, schedule=partial)
        assert list(fast.ledger) == list(right.ledger), "ledgers of the two engines, some absent"
    return 0.0


def _holders(run: Run, round: int) -> dict[str, int]:
    """How many clients of each silo have rows in what is drawn in a round."""
    fed = StackedEngine(run.task, run.shapes, run.placement, seed=3, schedule=Everyone())
    fed.begin(round)
    rows = getattr(run.algorithm.draw(fed), "rows", None)
    if rows is None:
        return {silo: len(names) for silo, names in run.placement.topology.clients.items()}
    return fed.holders(rows)


@_check
def twins(algorithm: Algorithm) -> float:
    """(4) In its degenerate cases it is another algorithm, also when clients are absent."""
    twins = cases.of(type(algorithm)).twins
    assert twins, "register at least one degenerate case: Cases(..., twins=[...])"
    worst = 0.0
    for case in twins:
        learn, rows = sample_of(case.one, case.silos, case.clients, case.head)
        for engine in ("stacked", "reference"):
            schedules = [Everyone()] if case.complete else [Everyone(), Drawn(0.7, seed=5)]
            for schedule in schedules:
                run = _run(case.one, rows, learn, engine=engine, schedule=schedule)
                twin = _run(case.other, rows, learn, engine=engine, schedule=schedule)
                what = f"{case.about} ({engine}, {schedule})"
                worst = max(worst, _same(_differ(run, twin), 1e-10, what))
    return worst


@_check
def renaming(algorithm: Algorithm) -> float:
    """(5) Other names and another order of the clients change nothing; but for noise, which comes
    from a client's own stream."""
    if algorithm.protections():
        return 0.0
    _, rows = sample_of(algorithm)
    shards = {
        silo: {f"renamed {name}": clients[name] for name in reversed(clients)}
        for silo, clients in rows.shards().items()
    }
    names = {name: f"renamed {name}" for clients in rows.shards().values() for name in clients}
    rename = cases.of(type(algorithm)).renamed
    settings = algorithm if rename is None else rename(algorithm, names)
    renamed = _run(settings, Placement.of(shards, rows.topology.server))
    return _same(_differ(_run(algorithm, rows), renamed), TOLERANCE, "renamed clients")


@_check
def padding(algorithm: Algorithm) -> float:
    """(6) Extra padding changes nothing."""
    worst = 0.0
    for learn in _tasks(algorithm):
        plain = _run(algorithm, learn=learn, schedule=Drawn(0.7, seed=5))
        for extra in (1, 4):
            fed = StackedEngine(
                plain.task,
                plain.shapes,
                plain.placement,
                seed=3,
                schedule=Drawn(0.7, seed=5),
                padding=extra,
            )
            blocks = algorithm.blocks(fed, _played(fed, algorithm))
            difference = tree.largest_difference(blocks, _blocks(plain))
            worst = max(worst, _same(difference, TOLERANCE, f"{extra} rows of padding"))
    return worst


@_check
def resuming(algorithm: Algorithm) -> float:
    """(7) Stopping and going on is a straight run."""
    for engine in ("stacked", "reference"):
        options: dict[str, Any] = {"engine": engine, "schedule": Drawn(0.7, seed=5)}
        straight = _run(algorithm, rounds=4, **options)
        stopped = _run(algorithm, rounds=2, **options).snapshot()
        resumed = Run(
            algorithm, *sample_of(algorithm), precision="float64", seed=3, **options
        ).restore(stopped)
        _same(_differ(resumed.fit(4), straight), 0.0, f"resumed ({engine})")
        assert list(resumed.ledger) == list(straight.ledger), "the resumed run's ledger"
        assert resumed.record == straight.record, "the resumed run's record"
    return 0.0


@_check
def same_seed(algorithm: Algorithm) -> float:
    """(8) The same seed gives the same records; another seed gives others."""
    (learn, rows), curves = sample_of(algorithm), []
    for seed in (3, 3, 4):
        losses: list[float] = []
        run = Run(algorithm, learn, rows, seed=seed, precision="float64")
        for rounds in (1, 2):
            losses.append(run.fit(rounds).loss())
        curves.append((losses, list(run.ledger)))
    assert curves[0] == curves[1], "two runs of one seed have different records"
    assert curves[0][0] != curves[2][0], "two seeds have the same records"
    return 0.0


@_check
def replaying(algorithm: Algorithm) -> float:
    """(9) What was recorded, written down and read again, replays to the same model."""
    for name, schedule in _schedules(algorithm).items():
        for engine in ("stacked", "reference"):
            ran = _run(algorithm, engine=engine, schedule=schedule)
            record = Recorded.from_json(json.loads(json.dumps(ran.record.to_json())))
            again = _run(algorithm, engine=engine, schedule=record)
            _same(_differ(ran, again), 0.0, f"replay of {name} ({engine})")
            assert list(ran.ledger) == list(again.ledger), "the replay's ledger"
    return 0.0


@_check
def learning(algorithm: Algorithm) -> float:
    """(10) The loss falls."""
    run = Run(algorithm, *sample_of(algorithm), seed=3, precision="float64")
    before = run.loss()
    after = run.fit(30).loss()
    assert after < 0.95 * before, f"the loss went from {before:.4f} to {after:.4f}"
    return 0.0


@_check
def absent_rows(algorithm: Algorithm) -> float:
    """(11) Rows of absent clients have no influence, in any silo: other numbers in their place
    give the same model. (The table of an asynchronous master has them, from the other silos.)"""
    _, rows = sample_of(algorithm)
    silo = rows.topology.silos[0]
    out = rows.topology.clients[silo][1]
    away = Scripted({Moment(round): {silo: [out]} for round in range(ROUNDS)})
    gone = set(rows.shards()[silo][out].ids.tolist())
    shards = rows.shards()
    for other in shards if algorithm.joint else [silo]:
        shards[other] = {name: _spoiled(shard, gone) for name, shard in shards[other].items()}
    if algorithm.joint:
        spoiled = Placement.of(shards, rows.topology.server)
    else:
        alone = Placement.of({silo: shards[silo]})
        spoiled = replace(rows, x={**rows.x, **alone.x}, y={**rows.y, **alone.y})
    worst = 0.0
    for engine in ("stacked", "reference"):
        plain = _run(algorithm, rows, engine=engine, schedule=away)
        changed = _run(algorithm, spoiled, engine=engine, schedule=away)
        difference = _differ(plain, changed)
        if algorithm.asynchronous:
            difference = tree.largest_difference(_blocks(plain), _blocks(changed))
        worst = max(worst, _same(difference, TOLERANCE, f"absent rows ({engine})"))
    return worst


def _spoiled(shard: Shard, ids: set[Any]) -> Shard:
    hit = torch.from_numpy(np.isin(shard.ids, list(ids)))
    x, y = shard.x.clone(), shard.y.clone()
    x[hit] = torch.where(x[hit] == 0, x[hit], 7.0 - 3 * x[hit])  # zeros: what is not there
    y[hit] = (y[hit] + 1) % CLASSES
    return Shard(shard.ids, x, y)


@_check
def replicas(algorithm: Algorithm) -> float:
    """(12) All hubs of a joint model predict the same, to the bit."""
    if algorithm.joint:
        run = _run(algorithm, learn=sample_of(algorithm, head=algorithm.takes_head)[0])
        first, *others = (run.predict(at=silo) for silo in run.placement.topology.silos)
        for other in others:
            assert torch.equal(first, other), "hubs predict differently"
    return 0.0
