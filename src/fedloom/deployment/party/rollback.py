"""Hubs that cannot go on as they are agree on the round to go on from.

A hub comes from an earlier moment than the others remember: a backup was restored, a folder lost, a
file damaged. Whoever notices leaves its attempt (federation/attempts.py), and so do all hubs and
the server, one after the other, as they meet those that have. In no attempt, each says at the
greeting which rounds it holds. The first of them in the run's order decides: the newest round that
all hold, made in the same attempt. It writes that down, and tells the others, who write it down.
Then all go on from there, in another attempt, and their clients begin anew with them.

Whoever dies meanwhile comes back in its old attempt, meets the others in another, and all agree
once more: no round can have been made in an attempt in which a hub was missing that has a part in
it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from ...core.crash_points import crash
from ...core.errors import DataError, LostError, NoCommonRoundError, OutOfStepError
from ...core.topology import title
from ...fabric.attempts import START, Held, Line
from ...fabric.kinds import AT_THE_END, Message
from ...fabric.permits import Permits, Way, form_of
from ...fabric.schedule import Back
from ...transports.party import PartyTransport
from ..agreement.messages import JSON, packed, unpacked
from ..party_file import Patience
from .past_rounds import Past

GO_ON = "go-on"


class Agreed(Struct, frozen=True, forbid_unknown_fields=True):
    """What to go on from, in which attempt. `late`: processes of hubs that have agreed, and may not
    know it yet."""

    held: Held
    line: Line
    back: tuple[Back, ...]
    late: frozenset[str]

    def packed(self) -> dict[str, Tensor]:
        return {"told": packed(msgspec.to_builtins(self))}

    @staticmethod
    def unpacked(payload: Mapping[str, Tensor]) -> Agreed:
        try:
            return msgspec.convert(unpacked(payload["told"]), Agreed)
        except msgspec.ValidationError as problem:
            raise DataError(f"what was agreed on cannot be read ({problem})") from None


@dataclass
class Rollback:
    """One hub's part in it. `hubs`: all of them and the server, in the run's order."""

    me: str
    hubs: Sequence[str]
    past: Past
    waits: Patience
    transport: PartyTransport

    def agree(self) -> Agreed:
        """It is on disk when this returns."""
        self.transport.open()
        return self._lead() if self.me == self.hubs[0] else self._follow(self.hubs[0])

    def _lead(self) -> Agreed:
        transport, others = self.transport, [hub for hub in self.hubs if hub != self.me]
        transport.await_peers(others, self.waits.start)
        met = {hub: link.met for hub in others if (link := transport.links[hub]).met is not None}
        held = {self.me: transport.position.held} | {hub: one.held for hub, one in met.items()}
        chosen = newest_in_common(held)
        numbers = [self.past.line.number] + [one.line.number for one in met.values() if one.line]
        line = self.past.line.back_to(chosen.round, secrets.token_hex(8), 1 + max(numbers))
        newest = {hub: max(rounds).round for hub, rounds in held.items() if rounds}
        late = frozenset(one.boot for one in met.values())
        agreed = Agreed(chosen, line, (*self.past.back, Back(chosen.round, newest)), late)
        self.past.adopt(agreed.held, agreed.line, agreed.back)
        crash("agreed")
        for hub in others:
            transport.send(Message(AT_THE_END, GO_ON, self.me, hub, agreed.packed()))
        until = time.monotonic() + self.waits.linger
        while time.monotonic() < until and not all(self._knows(hub, line) for hub in others):
            transport.still_here()
        return replace(agreed, late=frozenset())  # whoever has not heard by now has to ask again

    def _knows(self, hub: str, line: Line) -> bool:
        """It has heard, or is there already."""
        link = self.transport.links[hub]
        return link.is_heard or (link.met is not None and link.met.line == line)

    def _follow(self, first: str) -> Agreed:
        transport, begun = self.transport, time.monotonic()
        transport.await_peers([first], self.waits.start)
        box, patience = transport.mailbox(self.me), self.waits.start + 2 * self.waits.patience
        while not box.held(first):
            transport.still_here()
            if time.monotonic() > max(begun, box.last(first)) + patience:
                raise LostError(
                    f"{title(self.me)} waited for {title(first)} to say where to go on from; "
                    f"nothing was heard of it for {patience:g} s"
                )
        told = box.take(first, AT_THE_END, GO_ON, patience)
        assert told is not None
        agreed = Agreed.unpacked(told.payload)
        if agreed.held not in transport.position.held:
            raise OutOfStepError(f"{title(self.me)} does not hold round {agreed.held.round}")
        crash("before agreeing")
        self.past.adopt(agreed.held, agreed.line, agreed.back)
        crash("agreed")
        return replace(agreed, late=agreed.late | {transport.links[first].boot})


def permits(hubs: Sequence[str]) -> Permits:
    """What may pass."""
    told = form_of({"told": JSON})
    return Permits({Way(GO_ON, hubs[0], hub): frozenset([told]) for hub in hubs[1:]})


def newest_in_common(held: Mapping[str, Sequence[Held]]) -> Held:
    """NoCommonRoundError, with what to restore, where there is none."""
    common = set[Held].intersection(*(set(rounds) for rounds in held.values()))
    if not common:
        raise NoCommonRoundError(to_restore(held))
    return max(common)


def to_restore(held: Mapping[str, Sequence[Held]]) -> str:
    """Whose folder would have to be another; and who holds what."""
    cure = "Restore folders of one moment"
    for hub in sorted(held, key=lambda hub: max(held[hub], default=START)):
        others = [set(rounds) for name, rounds in held.items() if name != hub]
        wanted = set[Held].intersection(*others) if others else set[Held]()
        if wanted and max(wanted) != START:
            cure = f"Restore the folder of {title(hub)} from a backup of {_words([*wanted])}"
            break
    has = ", ".join(f"{title(hub)} has {_words(rounds)}" for hub, rounds in held.items())
    if set.intersection(*({one.round for one in rounds} for rounds in held.values())):
        has += ", made in different attempts"
    return (
        f"hubs have no round in common to go on from. {cure}, or empty the folders of all parties "
        f"to begin anew: {has}"
    )


def _words(held: Sequence[Held]) -> str:
    rounds = sorted({one.round for one in held})
    if rounds in ([], [0]):
        return "nothing but the start"
    first, last = rounds[0], rounds[-1]
    return f"round {last}" if first == last else f"rounds {first} to {last}"


def said(agreed: Agreed) -> str:
    """For people."""
    had = ", ".join(
        f"{title(hub)} had round {round}" for hub, round in agreed.back[-1].held.items()
    )
    return f"going on from round {agreed.held.round}, attempt {agreed.line.number}: {had}"
