"""Rollback: hubs that cannot go on as they are agree on the round to go on from.

It is needed where a hub's memory is of an earlier moment than the others remember: a backup was
restored, a folder lost, a file damaged. Whoever notices leaves its attempt (fabric/attempts.py).
All hubs and the server do so, one after the other, as they meet those that have. Then each says at
the greeting which rounds it holds. The first of them in the run's order decides: the newest round
that all hold, made in the same attempt. It writes the decision to disk and sends it to the others,
who write it to disk. Then all go on from there, in another attempt, and their clients begin anew.

A hub that dies meanwhile comes back in its old attempt and meets the others in another; then all
agree once more. No round can have been made meanwhile, since a hub that takes part was missing.
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
from ...fabric.attempts import START, AttemptHistory, ResumePoint
from ...fabric.kinds import AT_THE_END, Message
from ...fabric.permits import Permits, Route, form_of
from ...fabric.schedule import RollbackRecord
from ...transports.links.party import PartyTransport
from ..agreement.messages import JSON, packed, unpacked
from ..party_file import WaitsSection
from .past_rounds import PastRounds

GO_ON = "go-on"


class RollbackDecision(Struct, frozen=True, forbid_unknown_fields=True):
    """The round to go on from, and the attempt. `late`: processes of hubs that have agreed, and may
    not know it yet."""

    held: ResumePoint
    line: AttemptHistory
    back: tuple[RollbackRecord, ...]
    late: frozenset[str]

    def packed(self) -> dict[str, Tensor]:
        return {"told": packed(msgspec.to_builtins(self))}

    @staticmethod
    def unpacked(payload: Mapping[str, Tensor]) -> RollbackDecision:
        try:
            return msgspec.convert(unpacked(payload["told"]), RollbackDecision)
        except msgspec.ValidationError as problem:
            raise DataError(f"the decision on a rollback cannot be read ({problem})") from None


@dataclass
class Rollback:
    """One hub's part in a rollback. `hubs`: all of them and the server, in the run's order."""

    me: str
    hubs: Sequence[str]
    past: PastRounds
    waits: WaitsSection
    transport: PartyTransport

    def agree(self) -> RollbackDecision:
        """What was agreed on is on disk when this returns."""
        self.transport.open()
        return self._lead() if self.me == self.hubs[0] else self._follow(self.hubs[0])

    def _lead(self) -> RollbackDecision:
        transport, others = self.transport, [hub for hub in self.hubs if hub != self.me]
        transport.await_peers(others, self.waits.start)
        met = {hub: link.met for hub in others if (link := transport.links[hub]).met is not None}
        rounds_of = {self.me: transport.position.held} | {
            hub: greeting.held for hub, greeting in met.items()
        }
        chosen = newest_in_common(rounds_of)
        numbers = [self.past.line.number] + [
            greeting.line.number for greeting in met.values() if greeting.line
        ]
        line = self.past.line.back_to(chosen.round, secrets.token_hex(8), 1 + max(numbers))
        newest = {hub: max(rounds).round for hub, rounds in rounds_of.items() if rounds}
        late = frozenset(greeting.boot for greeting in met.values())
        agreed = RollbackDecision(
            chosen, line, (*self.past.back, RollbackRecord(chosen.round, newest)), late
        )
        self.past.adopt(agreed.held, agreed.line, agreed.back)
        crash("agreed")
        for hub in others:
            transport.send(Message(AT_THE_END, GO_ON, self.me, hub, agreed.packed()))
        until = time.monotonic() + self.waits.linger
        while time.monotonic() < until and not all(self._knows(hub, line) for hub in others):
            transport.pause()
        return replace(agreed, late=frozenset())  # whoever has not heard by now has to ask again

    def _knows(self, hub: str, line: AttemptHistory) -> bool:
        """Whether it has the decision, or is in the new attempt already."""
        link = self.transport.links[hub]
        return link.is_heard or (link.met is not None and link.met.line == line)

    def _follow(self, first: str) -> RollbackDecision:
        transport, begun = self.transport, time.monotonic()
        transport.await_peers([first], self.waits.start)
        box, patience = transport.mailbox(self.me), self.waits.start + 2 * self.waits.patience
        while not box.waiting(first):
            transport.pause()
            if time.monotonic() > max(begun, box.last(first)) + patience:
                raise LostError(
                    f"{title(self.me)} waited for {title(first)} to name the round to go on from; "
                    f"nothing was heard of it for {patience:g} s"
                )
        message = box.take(first, AT_THE_END, GO_ON, patience)
        assert message is not None
        agreed = RollbackDecision.unpacked(message.payload)
        if agreed.held not in transport.position.held:
            raise OutOfStepError(f"{title(self.me)} does not hold round {agreed.held.round}")
        crash("before agreeing")
        own = (*self.past.back, agreed.back[-1])  # the first hub may come from before the others
        agreed = replace(agreed, back=max(agreed.back, own, key=len))
        self.past.adopt(agreed.held, agreed.line, agreed.back)
        crash("agreed")
        return replace(agreed, late=agreed.late | {transport.links[first].boot})


def permits(hubs: Sequence[str]) -> Permits:
    """What may pass."""
    json_form = form_of({"told": JSON})
    return Permits({Route(GO_ON, hubs[0], hub): frozenset([json_form]) for hub in hubs[1:]})


def newest_in_common(rounds_of: Mapping[str, Sequence[ResumePoint]]) -> ResumePoint:
    """NoCommonRoundError, with what to restore, where there is none."""
    common = set[ResumePoint].intersection(*(set(rounds) for rounds in rounds_of.values()))
    if not common:
        raise NoCommonRoundError(to_restore(rounds_of))
    return max(common)


def to_restore(rounds_of: Mapping[str, Sequence[ResumePoint]]) -> str:
    """The error's text: whose folder to restore, and who holds which rounds."""
    cure = "Restore folders of one moment"
    for hub in sorted(rounds_of, key=lambda hub: max(rounds_of[hub], default=START)):
        others = [set(rounds) for name, rounds in rounds_of.items() if name != hub]
        wanted = set[ResumePoint].intersection(*others) if others else set[ResumePoint]()
        if wanted and max(wanted) != START:
            cure = f"Restore the folder of {title(hub)} from a backup of {_words([*wanted])}"
            break
    has = ", ".join(f"{title(hub)} has {_words(rounds)}" for hub, rounds in rounds_of.items())
    if set.intersection(*({state.round for state in rounds} for rounds in rounds_of.values())):
        has += ", made in different attempts"
    return (
        f"hubs have no round in common to go on from. {cure}, or empty the folders of all parties "
        f"to begin anew: {has}"
    )


def _words(states: Sequence[ResumePoint]) -> str:
    rounds = sorted({state.round for state in states})
    if rounds in ([], [0]):
        return "nothing but the start"
    first, last = rounds[0], rounds[-1]
    return f"round {last}" if first == last else f"rounds {first} to {last}"


def said(agreed: RollbackDecision) -> str:
    """For people."""
    had = ", ".join(
        f"{title(hub)} had round {round}" for hub, round in agreed.back[-1].newest.items()
    )
    return f"going on from round {agreed.held.round}, attempt {agreed.line.number}: {had}"
