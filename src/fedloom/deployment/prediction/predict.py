"""Scores of a finished federation for one of its parties: `fedloom predict`.

Every party takes part, and says for whom. First they find out who has which rows (availability.py).
Then the algorithm's own `predict` runs; its scores go to the asking silo's hub alone (query.py),
and from there to the party that asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...algorithms.contract import Step
from ...config.fingerprint import fingerprint
from ...config.runfile import RunFile
from ...core.errors import AbortedError, DataError, ExistsError, LostError, SettingError
from ...core.files import locked, private_folder
from ...core.topology import SERVER, Client, Party, title
from ...engines.party.timeouts import Waits
from ...fabric.schedule import Everyone
from ...models.threshold import HALF, in_words, is_rule
from ...runs.build import build_algorithm
from ...runs.evaluator import FEW
from ..agreement.agreement import Agreement
from ..channel import Channel
from ..connect import Connections, peers
from ..log import Log
from ..party.finished import FinishedRun, state_of
from ..party.past_rounds import DONE
from ..party_file import PartyFile
from .availability import (
    MOVES,
    Availability,
    AvailableRows,
    OwnInput,
    availability_permits,
    home_of,
)
from .lookup import OwnRows, RowNames, preparation_digest
from .query import QueryEngine, all_permits, expected_messages
from .scores import write_scores


@dataclass(frozen=True)
class Question:
    """Of the asking party: a file of ids, and where the scores go. `without`: rows that a silo does
    not have are scored without it."""

    ids: Path
    out: Path
    without: bool = False


@dataclass
class Prediction:
    """One party's part in a prediction for `asker`."""

    file: RunFile
    own: PartyFile
    asker: Party
    log: Log
    question: Question | None = None

    def __post_init__(self) -> None:
        self.me, self.home = self.own.me, home_of(self.asker)
        self.agreement = Agreement.read(Path(self.own.party.agreement))
        self.topology = self.agreement.topology
        peers(self.topology, self.me)
        if self.asker not in self.topology.parties or self.asker == SERVER:
            raise SettingError(f"{title(self.asker)} cannot ask: a client can, or a hub")
        if (self.question is not None) != (self.me == self.asker):
            raise SettingError(f"{title(self.me)}: it is {title(self.asker)} that asks, with --ids")
        self.algorithm = build_algorithm(self.file)
        self.played = self.agreement.facts.played(self.file.of_rows(self.agreement.size))
        self.expected = expected_messages(self.file, self.agreement.facts, self.home)
        if self.question is not None and self.question.without and not self.expected.adds_up:
            raise SettingError(
                'missing = "without": here scores are not sums over silos (a head, combine = '
                '"concat", or pooled columns), so none can be left out'
            )
        threshold = self.file.evaluation.threshold
        if self.question is not None and is_rule(threshold):
            raise SettingError(
                f"evaluation.threshold: {in_words(threshold)} is sought on validation rows, which "
                "nobody has here; give the number that a simulation, or your own rows, found"
            )
        self.threshold = threshold if isinstance(threshold, float) else HALF
        shared = {"step": "predict", "for": str(self.asker), "agreed": self.agreement.to_json()}
        self.run = fingerprint(self.file, shared)
        self.folder = Path(self.own.party.folder)

    def go(self) -> None:
        """To the end; at the asking party, with scores on disk."""
        if self.question is not None and self.question.out.exists():
            raise ExistsError(f"{self.question.out} already exists: remove it, or name another")
        private_folder(self.folder)
        with locked(self.folder):
            own_input = self._own_input()
            allowed = all_permits(
                self.expected,
                availability_permits(self.topology, self.asker, self.agreement.shapes),
            )
            links = Connections(self.own, self.topology)
            transport = links.transport(self.run, allowed, self.log.note)
            self._take_part(Channel(transport, self.me, MOVES, self.own.waits), own_input)

    def _own_input(self) -> OwnInput:
        """Everything that this party reads from disk, before anybody waits for it."""
        me, file, own = self.me, self.file, self.own
        finished = None
        if not isinstance(me, Client) or (self.folder / DONE).exists():
            finished = FinishedRun.read(self.folder, fingerprint(file, self.agreement.to_json()))
        if self.question is not None:
            self.names = RowNames.of(file, own)
            self.ids = self.names.asked(self.question.ids, me)
        return OwnInput(
            finished,
            "" if me == SERVER else preparation_digest(file, own),
            OwnRows(file, own, self.agreement) if isinstance(me, Client) else None,
            None if self.question is None else self.names.hashes(self.ids),
            self.question is not None and self.question.without,
        )

    def _take_part(self, channel: Channel, own_input: OwnInput) -> None:
        log = self.log
        log.note("predicting", run=self.run, asker=str(self.asker))
        if self.algorithm.promises():
            notice = "embeddings of predicted rows have no noise: the run's promise leaves them out"
            log.tell("privacy", notice)
        problem: BaseException | None = None
        try:
            channel.open()
            self._go(channel, own_input)
        except BaseException as error:
            problem = error
            channel.fail(error)
        finally:
            channel.close()
            log.note("sent", **channel.totals())
        if problem is not None:
            if isinstance(problem, LostError | AbortedError) and channel.cause is not None:
                problem = AbortedError(channel.cause)  # as all have heard it
            log.note("failed", why=str(problem) or type(problem).__name__)
            raise problem

    def _go(self, channel: Channel, own_input: OwnInput) -> None:
        available = Availability(
            self.me, self.asker, self.topology, channel, own_input, self.log
        ).find()
        size, there = available.view.size, available.there
        fed = self._engine(channel, available)
        scores = self._scores(fed, own_input.finished, size)
        last = 1 + -(-size // FEW)  # the round of keys after the last piece
        if self.me == self.home and self.me != self.asker:
            channel.send("predict-scores", self.asker, {"scores": scores, "there": there}, last)
        elif self.me == self.asker and self.me != self.home:
            message = channel.receive("predict-scores", self.home, last)
            scores, there = message["scores"], message["there"]
        fed.finish()
        if self.question is not None:
            if len(scores) != len(self.ids) or len(there) != len(self.ids):
                raise DataError(f"{title(self.home)} sent scores of other rows")
            facts, out = self.agreement.facts, self.question.out
            loss, column = facts.task(self.file).loss, self.names.column
            write_scores(out, column, self.ids, scores, there, facts, loss, self.threshold)
        self.log.note("predicted", rows=size, version=available.version)
        self.log.say(f"{title(self.me)}: done; model version {available.version[:12]}")

    def _engine(self, channel: Channel, available: AvailableRows) -> QueryEngine:
        engine = self.file.engine
        if engine.threads is not None:
            torch.set_num_threads(engine.threads)
        return QueryEngine(
            self.agreement.facts.task(self.file),
            self.agreement.shapes,
            available.view,
            hosted=[self.me],
            transport=channel.transport,
            seed=engine.seed,
            schedule=Everyone(),
            waits=Waits(None, self.own.waits.patience),
            device=engine.device,
            asker=self.home,
            without=available.without,
        )

    def _scores(self, fed: QueryEngine, finished: FinishedRun | None, size: int) -> Tensor:
        """Of all rows, at the asking hub; elsewhere, nothing."""
        state, scores = state_of(fed, self.played, finished), [torch.zeros(0)]
        for piece, start in enumerate(range(0, size, FEW)):
            fed.begin(1 + piece)
            end = min(start + FEW, size)
            rows = Step(*fed.minibatch(torch.arange(start, end)))
            predicted = self.algorithm.predict(fed, state, rows)
            if self.me == self.home:
                value, mask = predicted.get(self.home, "predict")
                if not bool(mask.all()):
                    raise LostError(f"{int((~mask).sum())} rows have no score: a party was lost")
                scores.append(value.detach().cpu())
            self.log.tell("rows", f"{end} of {size} rows", rows=end)
        return torch.cat(scores[1:] or scores)
