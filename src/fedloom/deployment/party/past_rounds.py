"""The rounds that a party can still go back to, in its folder.

    checkpoint.safetensors  checkpoint-N.safetensors  the state after N rounds (records/history.py)
    links-N.msgpack                                   of the same moment: messages that others may
                                                      ask for again, and the attempts so far

The second is written first; the checkpoint, renamed into place, makes it count. So the two are
always of one moment. Files that are damaged, or of an attempt that is over, do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from ...core import seal
from ...core.crash_points import crash
from ...core.errors import DamagedError, SettingError
from ...core.topology import Client
from ...fabric.attempts import START, AttemptHistory, ResumePoint
from ...fabric.schedule import RollbackRecord
from ...records.checkpoint import Checkpoint, load_checkpoint, round_of
from ...records.history import Checkpoints
from ...records.snapshot import Snapshot
from ...transports.links.repetition import RoundDigests

DONE = "done.json"
LINKS = re.compile(r"links-(\d+)\.msgpack")


class StateFile(Struct, kw_only=True, forbid_unknown_fields=True):
    """A file of a party's memory: it names its run, and has a digest over all of it."""

    seal: str = seal.BLANK
    run: str


S = TypeVar("S", bound=StateFile)


class LinkState(StateFile, kw_only=True, forbid_unknown_fields=True):
    """links-N.msgpack: what a party goes on from, besides its state. `pending`: of state that a
    client keeps, by field, the move whose receipt decides which of two versions counts."""

    line: AttemptHistory = AttemptHistory()
    back: tuple[RollbackRecord, ...] = ()
    receipts: list[tuple[str, str, int, int]] = field(default_factory=list)  # silo, client, key
    # to hubs: the last key that is not kept, and those after it with their frames
    sent: dict[str, tuple[tuple[int, int], list[tuple[int, int, bytes]]]] = field(
        default_factory=dict
    )
    heard: dict[str, RoundDigests] = field(default_factory=dict)  # from hubs
    pending: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class PastRounds:
    """A party's last `keep` rounds of the run with this fingerprint. `report` is called with damage
    that is found."""

    folder: Path
    run: str
    keep: int = 10
    report: Callable[[DamagedError], None] = lambda problem: None

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folder, self.keep)
        self.line, self.back, self.rounds = (
            AttemptHistory(),
            tuple[RollbackRecord, ...](),
            tuple[ResumePoint, ...](),
        )
        self._link_states: dict[int, LinkState] = {}
        self._reported: set[str] = set()

    # What is there

    @property
    def is_there(self) -> bool:
        return self.checkpoints.newest.exists() or bool(self._link_files())

    def scan(self) -> tuple[ResumePoint, ...]:
        """Reads the folder: the rounds that it holds, the newest first; whole ones, of the attempts
        that count. The start is one of them for as long as a round would be. DamagedError where
        nothing is left."""
        files = {round: self._read_whole(path) for round, path in self._link_files().items()}
        self._link_states = {round: links for round, links in files.items() if links is not None}
        blank = LinkState(run=self.run)
        last = max(self._link_states.values(), key=lambda links: links.line.number, default=blank)
        self.line, self.back = last.line, last.back
        states = self._states()
        whole = [round for round, path in states.items() if self._is_whole(path)]
        made = [
            self._link_states[round].line.of(round) for round in whole if round in self._link_states
        ]
        rounds = sorted((state for state in made if self.line.has(state)), reverse=True)
        if states and not rounds and 0 not in self._link_states:
            raise DamagedError(
                f"{self.folder}: no checkpoint is whole. Restore the folder from a backup, or empty"
                " it: hubs then go on from what all of them hold"
            )
        self._set_rounds(rounds)
        return self.rounds

    def _set_rounds(self, rounds: Sequence[ResumePoint]) -> None:
        """These rounds, and the start for as long as a round would be held."""
        newest = rounds[0].round if rounds else 0
        start = (START,) if newest <= self.keep else ()
        self.rounds = (*[state for state in rounds if state != START][: self.keep], *start)

    @property
    def current_line(self) -> list[ResumePoint]:
        """Of the rounds held, those made in the attempts that count now."""
        return [state for state in self.rounds if self.line.has(state)]

    def _states(self) -> dict[int, Path]:
        """Checkpoints by their round, whole or not."""
        states, plain = self.checkpoints.older(), self.checkpoints.newest
        return {**states, round_of(plain) or 0: plain} if plain.exists() else states

    def _is_whole(self, path: Path) -> bool:
        try:
            seal.read(path)
        except DamagedError as problem:
            self._report(problem)
            return False
        return True

    def _read_whole(self, path: Path) -> LinkState | None:
        try:
            return self.read(path, LinkState)
        except DamagedError as problem:
            self._report(problem)
            return None

    def _report(self, problem: DamagedError) -> None:
        if str(problem) not in self._reported:
            self._reported.add(str(problem))
            self.report(problem)

    def links_of(self, round: int) -> LinkState:
        """Of a round that is held."""
        return self._link_states.get(round) or LinkState(run=self.run)

    def accepted(self, client: Client, round: int) -> int:
        """The round of the last move that a hub accepted from a client in that many; -1: none."""
        receipts = self.links_of(round).receipts
        rounds = [key for silo, name, key, _ in receipts if Client(silo, name) == client]
        return rounds[0] if rounds else -1

    def load(self, round: int) -> Checkpoint:
        checkpoint = load_checkpoint(self._states()[round])
        if checkpoint.round != round:
            raise DamagedError(
                f"{self._states()[round]} is of round {checkpoint.round}, not {round}"
            )
        return checkpoint

    # Changes

    def save(self, snapshot: Snapshot, links_of: LinkState, wall: float) -> None:
        """One more round; later ones are deleted."""
        done = snapshot.round
        self.write(self._path(done), links_of)
        crash("between the two files")
        self.checkpoints.save(snapshot, (), wall)
        self._link_states[done] = links_of
        self._forget_links(done)
        self._set_rounds(
            [self.line.of(done), *(state for state in self.rounds if state.round < done)]
        )

    def adopt(
        self, state: ResumePoint, line: AttemptHistory, back: tuple[RollbackRecord, ...]
    ) -> None:
        """Another attempt, from a round that is held. It counts as soon as it is on disk; messages
        of before are not needed any more."""
        old = self.links_of(state.round)
        new = LinkState(
            run=self.run, line=line, back=back, receipts=old.receipts, pending=old.pending
        )
        (self.folder / DONE).unlink(missing_ok=True)  # it is not done any more
        self.write(self._path(state.round), new)
        crash("went back")
        self.begin(state.round)

    def begin(self, round: int) -> None:
        """This round becomes the newest; later ones are deleted."""
        self.checkpoints.back_to(round)
        self._forget_links(round)

    def _forget_links(self, newest: int) -> None:
        states = {*self.checkpoints.older(), newest}
        for round, path in self._link_files().items():
            if round not in states and (round or newest > self.keep):
                path.unlink(missing_ok=True)

    # Files

    def _link_files(self) -> dict[int, Path]:
        named = ((LINKS.fullmatch(path.name), path) for path in self.folder.glob("links-*"))
        return {int(number[1]): path for number, path in named if number is not None}

    def _path(self, round: int) -> Path:
        return self.folder / f"links-{round}.msgpack"

    def read(self, path: Path, kind: type[S]) -> S:
        """DamagedError, or SettingError for a file of another run."""
        try:
            content = msgspec.msgpack.decode(seal.read(path), type=kind)
        except msgspec.MsgspecError as problem:
            raise DamagedError(f"{path} has an unknown form ({problem})") from None
        if content.run != self.run:
            raise SettingError(
                f"{self.folder} is of another run: fingerprints {content.run[:12]} and "
                f"{self.run[:12]}"
            )
        return content

    def write(self, path: Path, what: StateFile) -> None:
        seal.write(path, msgspec.msgpack.encode(what))
