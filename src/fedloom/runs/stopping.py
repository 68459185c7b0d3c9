"""Early stopping: all parties score the validation rows together, and stop in the same round.

Every so many rounds the parties predict the validation rows, as they predict any. The hub of a silo
with labels finds out from its clients how good that is, and tells every hub that one number. Each
hub keeps the best model so far, and counts the evaluations since. So all of them end the run before
the same round, without another message. What they keep is part of the state: it is in checkpoints,
and a party that is started again decides as the others did.
"""

from __future__ import annotations

import copy
import math
from collections import namedtuple
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..algorithms.central import labels_of, to_all
from ..algorithms.contract import Algorithm, Step
from ..algorithms.shared.releasing import noisy
from ..config.sections import Stopping
from ..core.errors import SettingError
from ..core.payload import travels
from ..core.placed import AtHubs, Batch, Rows
from ..core.rng import Streams
from ..core.topology import SERVER
from ..data.dataset import Goal
from ..data.placement import Placement
from ..fabric.kinds import Kind
from ..fabric.verbs import Fabric
from ..models.task import Part, Task, Theta
from ..records.metrics import LOSS, NAMES, metrics, smaller_is_better
from ..records.own_metrics import chosen_metrics

SCORES = Kind("validation-scores", "the scores of a client's own validation rows", "scores")
LOSSES = Kind(
    "validation-losses",
    "the sum of the losses of a client's validation rows, and how many they are",
    reveals="with one row, and its scores: the label",
)
LABELS = Kind(
    "validation-labels", "the labels of a client's validation rows", "label", reveals="the labels"
)
VALIDATION = Kind("validation", "how good the model is on the validation rows: a number")

AT_ONCE = 4096  # validation rows that are predicted at once, at every party alike


class Watch(NamedTuple):
    """What every hub knows of the evaluations so far: the best of them, after which round that was
    (0: there is none yet), and how many have come since."""

    best: Tensor
    round: Tensor
    since: Tensor


@travels
class Evaluated(NamedTuple):
    """What one evaluation found: a number, if there is one."""

    value: Tensor
    known: Tensor


class Best(NamedTuple):
    """The evaluation that the kept model is of."""

    round: int
    metric: str
    value: float


class Validated(Algorithm):
    """An algorithm with early stopping around it: its rounds and its state, and in the state also
    the best model so far (`best_...`) and the `watch`.

    `rounds`: how many are asked for; `rows`: how many validation rows follow the others;
    `labelled`: silos with labels; `server`: whether there is one."""

    def __init__(
        self,
        own: Algorithm,
        stopping: Stopping,
        every: int,
        rounds: int,
        goal: Goal | None,
        rows: int,
        labelled: Sequence[str],
        server: bool,
    ):
        self.own, self.stopping, self.every, self.rounds = own, stopping, every, rounds
        self.goal: Goal | None = goal
        self.rows, self.labelled, self.server = rows, tuple(labelled), server
        self._check()

    def _check(self) -> None:
        """Refuse, before any training, what cannot be stopped early."""
        metric, name = self.stopping.metric, type(self.own).__name__
        if not self.rows:
            raise SettingError(
                "stopping: there are no validation rows to stop by; keep some back: `validation = "
                "0.15` in [data], or data.with_validation(0.15)"
            )
        if metric != LOSS:
            known = (LOSS, *NAMES.get(cast(Goal, self.goal), ()))
            if self.goal is None or metric not in known:
                chosen_metrics([metric], self.goal)
        if self.own.personal:
            raise SettingError(
                f"stopping: clients of {name} have models of their own, and hubs can keep the best "
                "of their own models only; leave [stopping] out"
            )
        if noisy(self.own) is not None:
            raise SettingError(
                "stopping: with privacy, embeddings of validation rows would leave clients without "
                "noise; leave [stopping] out, or privacy"
            )

    # The algorithm's own

    def check(self, task: Task, placement: Placement) -> None:
        self.own.check(task, placement)

    def draw(self, fed: Fabric) -> Any:
        return self.own.draw(fed)

    def predict(self, fed: Fabric, state: Any, step: Step) -> AtHubs[Rows]:
        return self.own.predict(fed, state, step)

    def warm_up(self, part: Part, streams: Streams) -> None:
        self.own.warm_up(part, streams)

    def halts(self, fed: Fabric, round: int) -> str | None:
        return self.own.halts(fed, round)

    def blocks(self, fed: Fabric, state: Any) -> dict[str, Theta]:
        return self.own.blocks(fed, self.best_of(fed, state))

    # Its state

    def own_state(self, state: Any) -> Any:
        """The algorithm's own, after the last round."""
        return self.own.State(*(getattr(state, name) for name in self.own.State._fields))

    def best_of(self, fed: Fabric, state: Any) -> Any:
        """The algorithm's own, after the round whose evaluation was best; the last, before any."""
        if self.best(fed, state) is None:
            return self.own_state(state)
        kept = self.own_state(state)._asdict()
        kept |= {name: getattr(state, f"best_{name}") for name in _at_hubs(kept)}
        return self.own.State(**kept)

    def best(self, fed: Fabric, state: Any) -> Best | None:
        """The best evaluation so far, as a hub hosted here knows it."""
        watch = next(iter(fed.read(state.watch).values()), None)
        if watch is None or int(watch.round) == 0:
            return None
        return Best(int(watch.round), self.stopping.metric, float(watch.best))

    def start(self, fed: Fabric) -> Any:
        fields = self.own.start(fed)._asdict()
        kept = _at_hubs(fields)
        watch = _joined([fed.at(party, nothing_yet) for party in self._parties(fed)])
        return _state(fields, kept, watch)

    def around(self, fed: Fabric, own: Any) -> Any:
        """The state of a run that goes on with early stopping: nothing is kept yet."""
        fields, watch = own._asdict(), self.start(fed).watch
        return _state(fields, _at_hubs(fields), watch)

    def renewed(self, fed: Fabric, state: Any) -> Any:
        """The state of a run that goes on after it has stopped: patience starts anew."""
        parties = [fed.at(party, patient, state.watch) for party in self._parties(fed)]
        return state._replace(watch=_joined(parties))

    def stops(self, fed: Fabric, state: Any) -> str | None:
        """Why the run must end now, if it must: the same at every hub."""
        watch = next(iter(fed.read(state.watch).values()))
        since, patience, metric = int(watch.since), self.stopping.patience, self.stopping.metric
        if since < patience:
            return None
        best = "no evaluation gave a number"
        if (found := self.best(fed, state)) is not None:
            best = f"the best is {found.value:.4g}, after round {found.round}"
        return f"{metric} on validation rows has not improved in {since} evaluations; {best}"

    # A round

    def is_due(self, round: int) -> bool:
        """Whether there is an evaluation at the end of a round."""
        return (round + 1) % self.every == 0 or round + 1 == self.rounds

    def each_round(self) -> Validated:
        """The same, with an evaluation in every round."""
        return self._with(every=1)

    def until(self, rounds: int) -> Validated:
        """The same, for so many rounds."""
        return self if rounds == self.rounds else self._with(rounds=rounds)

    def _with(self, **values: Any) -> Validated:
        same = copy.copy(self)
        same.__dict__.update(values)
        return same

    def round(self, fed: Fabric, state: Any, draw: Any) -> Any:
        after = self.own.round(fed, self.own_state(state), draw)
        fields = after._asdict()
        kept = {name: getattr(state, f"best_{name}") for name in _at_hubs(fields)}
        watch = state.watch
        if self.is_due(fed.round):
            told = self.evaluated(fed, after)
            parties, number = self._parties(fed), fed.known(fed.round + 1)
            better = _joined([fed.at(p, self.is_better, watch, told) for p in parties])
            watch = _joined([fed.at(p, counted, watch, told, better, number) for p in parties])
            kept = {name: _kept(fed, better, kept[name], fields[name]) for name in kept}
        return _state(fields, kept, watch)

    def _parties(self, fed: Fabric) -> list[str]:
        return [*fed.silos, *([SERVER] if self.server else [])]

    def evaluated(self, fed: Fabric, state: Any) -> AtHubs[Evaluated]:
        """How good the model is on all validation rows, at every hub and the server. Where silos
        predict alone, the mean over them."""
        fed.rejoin()
        judges = self._judges()
        by_judge: dict[str, list[AtHubs[Any]]] = {judge: [] for judge in judges}
        end = fed.size + self.rows
        for first in range(fed.size, end, AT_ONCE):
            step = Step(*fed.minibatch(torch.arange(first, min(first + AT_ONCE, end))))
            scores = self.own.predict(fed, state, step)
            for judge, pieces in by_judge.items():
                pieces.append(self._judged(fed.within(judge), judge, scores, step))
        found = {j: fed.at(j, self.summed, *pieces) for j, pieces in by_judge.items()}
        if self.own.predicts_alone:
            return fed.at_hubs(mean_of, fed.exchange(VALIDATION, _joined(found.values())))
        (judge,) = judges
        to_each = fed.at(judge, to_all, fed.known(fed.silos), found[judge])
        at_hubs = fed.spread(VALIDATION, to_each, frm=judge)
        if not self.server:
            return at_hubs
        collected = fed.within(judge).collect(VALIDATION, found[judge], to=SERVER)
        return _joined([at_hubs, fed.at(SERVER, only, collected)])

    def _judges(self) -> tuple[str, ...]:
        """The silos whose hubs find out how good the model is."""
        if self.own.predicts_alone:
            return self.labelled
        return (getattr(self.own, "labels_at", None) or self.labelled[0],)

    def _judged(self, silo: Fabric, judge: str, scores: AtHubs[Rows], step: Step) -> AtHubs[Any]:
        """Of some rows, at a hub: the sum of their losses and their number, each in the mean over
        clients; or scores and labels."""
        if self.stopping.metric != LOSS:
            labels = silo.gather(LABELS, silo.at_clients(labels_of, step.batch_k), step.rows)
            return silo.at(judge, both, silo.part, scores, labels)
        scores_k = silo.scatter(SCORES, scores, step.rows)
        sums_k = silo.at_clients(losses_of, silo.part, scores_k, step.batch_k)
        nothing = silo.at(judge, no_losses, silo.known(silo.dtype))
        return silo.mean(LOSSES, sums_k, otherwise=nothing)

    # At one party

    def summed(self, *pieces: Any) -> Evaluated:
        """Of all validation rows."""
        if self.stopping.metric == LOSS:
            total, rows, bad = (
                sum(float(piece[name]) for piece in pieces) for name in ("sum", "rows", "bad")
            )
            return evaluated_of(total / rows if rows and not bad else None)
        counts = torch.cat([scores.mask & labels.mask for scores, labels in pieces])
        scores = torch.cat([scores.value for scores, _ in pieces])[counts]
        labels = torch.cat([labels.value for _, labels in pieces])[counts]
        assert self.goal is not None
        metric = self.stopping.metric
        values = metrics(self.goal, scores, labels, [metric]) if scores.isfinite().all() else {}
        return evaluated_of(values.get(metric))

    def is_better(self, watch: Watch, found: Evaluated) -> bool:
        """Whether it is an improvement."""
        if not bool(found.known):
            return False
        if int(watch.round) == 0:
            return True
        gain = float(found.value) - float(watch.best)
        gain = -gain if smaller_is_better(self.stopping.metric) else gain
        return gain > self.stopping.least


def evaluated_of(value: float | None) -> Evaluated:
    known = value is not None and math.isfinite(value)
    number = torch.tensor(value if known else 0.0, dtype=torch.float64)
    return Evaluated(number, torch.tensor(int(known)))


def mean_of(by_silo: dict[str, Evaluated]) -> Evaluated:
    """Over silos that predict alone."""
    if not all(bool(found.known) for found in by_silo.values()):
        return evaluated_of(None)
    return evaluated_of(sum(float(found.value) for found in by_silo.values()) / len(by_silo))


def losses_of(part: Part, scores: Rows, batch: Batch) -> dict[str, Tensor]:
    """The sum of a client's losses, its rows that count, and whether a loss is not finite."""
    assert batch.y is not None
    losses = torch.where(scores.mask, part.loss.rows(scores.value, batch.y), 0.0)
    bad = ~losses.isfinite()
    total = torch.where(bad, 0.0, losses).sum()
    rows = scores.mask.to(total.dtype).sum()
    return {"sum": total, "rows": rows, "bad": bad.to(total.dtype).sum()}


def no_losses(dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.zeros((), dtype=dtype) for name in ("sum", "rows", "bad")}


def both(part: Part, scores: Rows, labels: Rows) -> tuple[Rows, Rows]:
    """Predictions in the labels' own unit where they are numbers, else scores."""
    return scores._replace(value=part.loss.values(scores.value)), labels


def only(by_silo: dict[str, Evaluated]) -> Evaluated:
    (found,) = by_silo.values()
    return found


def nothing_yet() -> Watch:
    zero = torch.zeros((), dtype=torch.int64)
    return Watch(torch.zeros((), dtype=torch.float64), zero, zero.clone())


def counted(watch: Watch, found: Evaluated, better: bool, round: int) -> Watch:
    """After one more evaluation, at the end of a round."""
    if better:
        return Watch(found.value.clone(), torch.tensor(round), torch.tensor(0))
    return watch._replace(since=watch.since + 1)


def patient(watch: Watch) -> Watch:
    return watch._replace(since=torch.zeros_like(watch.since))


def chosen(better: bool, before: Any, after: Any) -> Any:
    return after if better else before


def _kept(fed: Fabric, better: AtHubs[bool], before: Any, after: Any) -> AtHubs[Any]:
    """The model that is best so far, wherever a part of it lives."""
    return _joined([fed.at(place, chosen, better, before, after) for place in after.places])


def _at_hubs(fields: dict[str, Any]) -> dict[str, AtHubs[Any]]:
    return {name: value for name, value in fields.items() if isinstance(value, AtHubs)}


def _joined(values: Iterable[AtHubs[Any]]) -> AtHubs[Any]:
    """Values that live at different parties, as one."""
    values = list(values)
    held = {party: own for value in values for party, own in value.held().items()}
    return AtHubs(held, tuple(place for value in values for place in value.places))


def _state(fields: dict[str, Any], kept: dict[str, AtHubs[Any]], watch: AtHubs[Watch]) -> Any:
    make = _state_type(tuple(fields), tuple(kept))
    return make(*fields.values(), *kept.values(), watch)


@lru_cache
def _state_type(own: tuple[str, ...], kept: tuple[str, ...]) -> Any:
    """A state's own fields, the best of those that live at hubs, and the watch."""
    return namedtuple("ValidatedState", [*own, *(f"best_{name}" for name in kept), "watch"])
