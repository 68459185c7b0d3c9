"""Scores of a finished federation for one of its parties: `fedloom predict`.

Every party takes part, and says for whom. When all know who has which rows (rollcall.py), the
algorithm's own `predict` runs, and what comes of it goes to the asking silo's hub alone (asking.py)
and to the one who asked.
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
from ...runs.build import build_algorithm
from ...runs.evaluator import FEW
from ..agreement.agreement import Agreement
from ..channel import Speaking
from ..connect import Connections, peers
from ..log import Log
from ..party.finished import Finished, state_of
from ..party.past_rounds import DONE
from ..party_file import PartyFile
from .availability import MOVES, Brought, Called, RollCall, around, home_of
from .lookup import Names, OwnRows, preparation_digest
from .query import Asked, foresee, permits
from .scores import write_scores


@dataclass(frozen=True)
class Question:
    """Of the one who asks: rows in a file, and where the scores go. `without`: rows that a silo
    does not have are scored without it."""

    ids: Path
    out: Path
    without: bool = False


@dataclass
class Predicting:
    """One party's part in it. `asker`: for whom it is done."""

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
        self.foreseen = foresee(self.file, self.agreement.basis, self.home)
        if self.question is not None and self.question.without and not self.foreseen.adds_up:
            raise SettingError(
                'missing = "without": here scores are not sums over silos (a head, combine = '
                '"concat", or pooled columns), so none can be left out'
            )
        told = {"step": "predict", "for": str(self.asker), "agreed": self.agreement.to_json()}
        self.run = fingerprint(self.file, told)
        self.folder = Path(self.own.party.folder)

    def go(self) -> None:
        """To the end; at the one who asks, with scores on disk."""
        if self.question is not None and self.question.out.exists():
            raise ExistsError(f"{self.question.out} is there already: remove it, or name another")
        private_folder(self.folder)
        with locked(self.folder):
            brought = self._brought()
            allowed = permits(
                self.foreseen, around(self.topology, self.asker, self.agreement.shapes)
            )
            links = Connections(self.own, self.topology)
            transport = links.transport(self.run, allowed, self.log.note)
            self._take_part(Speaking(transport, self.me, MOVES, self.own.waits), brought)

    def _brought(self) -> Brought:
        """Everything that is this party's own, read before anybody waits for it."""
        me, file, own = self.me, self.file, self.own
        finished = None
        if not isinstance(me, Client) or (self.folder / DONE).exists():
            finished = Finished.read(self.folder, fingerprint(file, self.agreement.to_json()))
        if self.question is not None:
            self.names = Names.of(file, own)
            self.ids = self.names.asked(self.question.ids, me)
        return Brought(
            finished,
            "" if me == SERVER else preparation_digest(file, own),
            OwnRows(file, own, self.agreement) if isinstance(me, Client) else None,
            None if self.question is None else self.names.hashes(self.ids),
            self.question is not None and self.question.without,
        )

    def _take_part(self, speak: Speaking, brought: Brought) -> None:
        log = self.log
        log.note("predicting", run=self.run, asker=str(self.asker))
        if self.algorithm.promises():
            said = "embeddings of predicted rows have no noise: the run's promise leaves them out"
            log.tell("privacy", said)
        problem: BaseException | None = None
        try:
            speak.open()
            self._go(speak, brought)
        except BaseException as found:
            problem = found
            speak.fail(found)
        finally:
            speak.close()
            log.note("sent", **speak.totals())
        if problem is not None:
            if isinstance(problem, LostError | AbortedError) and speak.cause is not None:
                problem = AbortedError(speak.cause)  # as all have heard it
            log.note("failed", why=str(problem) or type(problem).__name__)
            raise problem

    def _go(self, speak: Speaking, brought: Brought) -> None:
        called = RollCall(self.me, self.asker, self.topology, speak, brought, self.log).go()
        size, there = called.view.size, called.there
        fed = self._engine(speak, called)
        scores = self._scores(fed, brought.finished, size)
        last = 1 + -(-size // FEW)  # the round of keys after the last piece
        if self.me == self.home and self.me != self.asker:
            speak.say("predict-scores", self.asker, {"scores": scores, "there": there}, last)
        elif self.me == self.asker and self.me != self.home:
            came = speak.hear("predict-scores", self.home, last)
            scores, there = came["scores"], came["there"]
        fed.finish()
        if self.question is not None:
            if len(scores) != len(self.ids) or len(there) != len(self.ids):
                raise DataError(f"{title(self.home)} sent scores of other rows")
            basis, out = self.agreement.basis, self.question.out
            write_scores(out, self.names.column, self.ids, scores, there, basis)
        self.log.note("predicted", rows=size, version=called.version)
        self.log.say(f"{title(self.me)}: done; model version {called.version[:12]}")

    def _engine(self, speak: Speaking, called: Called) -> Asked:
        engine = self.file.engine
        if engine.threads is not None:
            torch.set_num_threads(engine.threads)
        return Asked(
            self.agreement.basis.task(self.file),
            self.agreement.shapes,
            called.view,
            hosted=[self.me],
            transport=speak.transport,
            seed=engine.seed,
            schedule=Everyone(),
            waits=Waits(None, self.own.waits.patience),
            device=engine.device,
            asker=self.home,
            without=called.without,
        )

    def _scores(self, fed: Asked, finished: Finished | None, size: int) -> Tensor:
        """Of all rows, at the asking hub; elsewhere, nothing."""
        state, scores = state_of(fed, self.algorithm, finished), [torch.zeros(0)]
        for piece, start in enumerate(range(0, size, FEW)):
            fed.begin(1 + piece)
            end = min(start + FEW, size)
            rows = Step(*fed.minibatch(torch.arange(start, end)))
            found = self.algorithm.predict(fed, state, rows)
            if self.me == self.home:
                value, mask = found.get(self.home, "predict")
                if not bool(mask.all()):
                    raise LostError(f"{int((~mask).sum())} rows have no score: somebody was lost")
                scores.append(value.detach().cpu())
            self.log.tell("rows", f"{end} of {size} rows", rows=end)
        return torch.cat(scores[1:] or scores)
