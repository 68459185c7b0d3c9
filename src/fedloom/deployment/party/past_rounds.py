"""The rounds that a party can still go back to, in its folder.

    checkpoint.safetensors  checkpoint-N.safetensors  the state after N rounds (records/history.py)
    links-N.msgpack                                   of the same moment: what others may still want
                                                      to hear, and in which attempts it was made

The second is written first; the checkpoint, renamed into place, makes it count. So the two are
always of one moment. What is damaged, or was made by an attempt that is over, does not count.
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
from ...fabric.attempts import START, Held, Line
from ...fabric.schedule import Back
from ...records.checkpoint import Checkpoint, load_checkpoint, round_of
from ...records.history import Checkpoints
from ...records.snapshot import Snapshot
from ...transports.word import Heard

DONE = "done.json"
LINKS = re.compile(r"links-(\d+)\.msgpack")


class OfRun(Struct, kw_only=True, forbid_unknown_fields=True):
    """A file of a party's memory: of a run, with a digest over all of it."""

    seal: str = seal.BLANK
    run: str


S = TypeVar("S", bound=OfRun)


class Beside(OfRun, kw_only=True, forbid_unknown_fields=True):
    """What a party goes on from, besides its state. `pending`: of state that a client keeps, by
    field, the move on which it depends which of two counts."""

    line: Line = Line()
    back: tuple[Back, ...] = ()
    receipts: list[tuple[str, str, int, int]] = field(default_factory=list)  # silo, client, key
    # to hubs: the last key that is not kept, and those after it with their frames
    sent: dict[str, tuple[tuple[int, int], list[tuple[int, int, bytes]]]] = field(
        default_factory=dict
    )
    heard: dict[str, Heard] = field(default_factory=dict)  # from hubs
    pending: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Past:
    """Of a party, for the run with this fingerprint: its last `keep` rounds. `tell` hears of what
    is damaged."""

    folder: Path
    run: str
    keep: int = 10
    tell: Callable[[DamagedError], None] = lambda problem: None

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folder, self.keep)
        self.line, self.back, self.held = Line(), tuple[Back, ...](), tuple[Held, ...]()
        self._besides: dict[int, Beside] = {}
        self._told: set[str] = set()

    # What is there

    @property
    def is_there(self) -> bool:
        return self.checkpoints.newest.exists() or bool(self._links())

    def look(self) -> tuple[Held, ...]:
        """What it holds, the newest first: whole, and of the line that the run has taken. The start
        is among it for as long as a round would be. DamagedError where nothing is left."""
        found = {round: self._whole(path) for round, path in self._links().items()}
        self._besides = {round: one for round, one in found.items() if one is not None}
        blank = Beside(run=self.run)
        last = max(self._besides.values(), key=lambda one: one.line.number, default=blank)
        self.line, self.back = last.line, last.back
        states = self._states()
        whole = [round for round, path in states.items() if self._is_whole(path)]
        made = [self._besides[round].line.of(round) for round in whole if round in self._besides]
        held = sorted((one for one in made if self.line.has(one)), reverse=True)
        if states and not held and 0 not in self._besides:
            raise DamagedError(
                f"{self.folder}: no checkpoint is whole. Restore the folder from a backup, or empty"
                " it: hubs then go on from what all of them hold"
            )
        self._hold(held)
        return self.held

    def _hold(self, held: Sequence[Held]) -> None:
        """These, and the start for as long as a round would be held."""
        newest = held[0].round if held else 0
        start = (START,) if newest <= self.keep else ()
        self.held = (*[one for one in held if one != START][: self.keep], *start)

    @property
    def on_line(self) -> list[Held]:
        """Of what is held: what was made in the attempts that count now."""
        return [one for one in self.held if self.line.has(one)]

    def _states(self) -> dict[int, Path]:
        """Checkpoints by their round, whole or not."""
        states, plain = self.checkpoints.older(), self.checkpoints.newest
        return {**states, round_of(plain) or 0: plain} if plain.exists() else states

    def _is_whole(self, path: Path) -> bool:
        try:
            seal.read(path)
        except DamagedError as problem:
            self._tell(problem)
            return False
        return True

    def _whole(self, path: Path) -> Beside | None:
        try:
            return self.read(path, Beside)
        except DamagedError as problem:
            self._tell(problem)
            return None

    def _tell(self, problem: DamagedError) -> None:
        if str(problem) not in self._told:
            self._told.add(str(problem))
            self.tell(problem)

    def beside(self, round: int) -> Beside:
        """Of a round that is held."""
        return self._besides.get(round) or Beside(run=self.run)

    def accepted(self, client: Client, round: int) -> int:
        """The round of the last move that a hub accepted from a client in that many; -1: none."""
        receipts = self.beside(round).receipts
        found = [key for silo, name, key, _ in receipts if Client(silo, name) == client]
        return found[0] if found else -1

    def load(self, round: int) -> Checkpoint:
        found = load_checkpoint(self._states()[round])
        if found.round != round:
            raise DamagedError(f"{self._states()[round]} is of round {found.round}, not {round}")
        return found

    # What becomes of it

    def save(self, snapshot: Snapshot, beside: Beside, wall: float) -> None:
        """One more round; of later ones nothing is left."""
        done = snapshot.round
        self.write(self._path(done), beside)
        crash("between the two files")
        self.checkpoints.save(snapshot, (), wall)
        self._besides[done] = beside
        self._forget_links(done)
        self._hold([self.line.of(done), *(one for one in self.held if one.round < done)])

    def adopt(self, held: Held, line: Line, back: tuple[Back, ...]) -> None:
        """Another attempt, from what is held: from now on, whatever happens. Nobody needs to hear
        anything of before."""
        old = self.beside(held.round)
        new = Beside(run=self.run, line=line, back=back, receipts=old.receipts, pending=old.pending)
        (self.folder / DONE).unlink(missing_ok=True)  # it is not done any more
        self.write(self._path(held.round), new)
        crash("went back")
        self.begin(held.round)

    def begin(self, round: int) -> None:
        """What is held of this round is the newest; of later ones nothing is left."""
        self.checkpoints.back_to(round)
        self._forget_links(round)

    def _forget_links(self, newest: int) -> None:
        states = {*self.checkpoints.older(), newest}
        for round, path in self._links().items():
            if round not in states and (round or newest > self.keep):
                path.unlink(missing_ok=True)

    # Files

    def _links(self) -> dict[int, Path]:
        named = ((LINKS.fullmatch(path.name), path) for path in self.folder.glob("links-*"))
        return {int(number[1]): path for number, path in named if number is not None}

    def _path(self, round: int) -> Path:
        return self.folder / f"links-{round}.msgpack"

    def read(self, path: Path, kind: type[S]) -> S:
        """DamagedError, or SettingError for a file of another run."""
        try:
            found = msgspec.msgpack.decode(seal.read(path), type=kind)
        except msgspec.MsgspecError as problem:
            raise DamagedError(f"{path} holds something else ({problem})") from None
        if found.run != self.run:
            raise SettingError(
                f"{self.folder} is of another run: fingerprints {found.run[:12]} and "
                f"{self.run[:12]}"
            )
        return found

    def write(self, path: Path, what: OfRun) -> None:
        seal.write(path, msgspec.msgpack.encode(what))
