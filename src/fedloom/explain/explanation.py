"""An explanation: a round's messages one by one, by party, and in groups for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..core.topology import Client, Party, Topology, title
from ..fabric.kinds import Direction, Kind, Tier
from ..fabric.ledger import LedgerLine

UNPROTECTED = "none: the receiver reads it"


class Shape(NamedTuple):
    """One tensor of a payload."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class SentMessage(NamedTuple):
    """One message. `move`: its number in the round."""

    move: int
    kind: str
    tier: Tier
    direction: Direction
    source: Party
    to: Party
    shapes: tuple[Shape, ...]
    bytes: int


class LocalWork(NamedTuple):
    """Local steps after a move: at the clients of some silos, or at some hubs."""

    after: int
    places: tuple[str, ...]
    at_clients: bool
    steps: int


class MessageGroup(NamedTuple):
    """The messages of one move on a group of links: inside one silo, or between hubs."""

    move: int
    kind: str
    tier: Tier
    direction: Direction
    sent: tuple[SentMessage, ...]

    @property
    def messages(self) -> int:
        return len(self.sent)

    @property
    def bytes(self) -> int:
        return sum(message.bytes for message in self.sent)

    @property
    def source(self) -> str:
        return _group([message.source for message in self.sent], self.direction == "across")

    @property
    def to(self) -> str:
        if self.direction == "across":
            return "every other hub"
        return _group([message.to for message in self.sent], False)

    @property
    def shape(self) -> str:
        """'5x4 float32, 5 float32'; where messages differ, '2..6x3 float32'."""
        shapes = [message.shapes for message in self.sent]
        if len({tuple((part.name, part.dtype, len(part.shape)) for part in m) for m in shapes}) > 1:
            return "of several forms"
        if len(shapes[0]) > 3:
            count = sum(_numel(part.shape) for part in shapes[0])
            return f"{len(shapes[0])} tensors, {count:,} numbers {shapes[0][0].dtype}"
        return ", ".join(_shape(parts) for parts in zip(*shapes, strict=True)) or "nothing"


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _shape(parts: Sequence[Shape]) -> str:
    """One tensor, over several messages."""
    sizes = []
    for axis in zip(*(part.shape for part in parts), strict=True):
        sizes.append(f"{min(axis)}" if min(axis) == max(axis) else f"{min(axis)}..{max(axis)}")
    return f"{'x'.join(sizes) or 'one'} {parts[0].dtype}"


def _group(parties: Sequence[Party], everyone: bool) -> str:
    different = list(dict.fromkeys(parties))
    if len(different) == 1:
        return title(different[0])
    if isinstance(different[0], Client):
        return f"each of {len(different)} clients of {different[0].silo}"
    return "every hub" if everyone else f"each of {len(different)} hubs"


@dataclass(frozen=True)
class Explanation:
    """Every message of one round of an algorithm, in the order in which they are sent."""

    algorithm: str
    topology: Topology
    kinds: Mapping[int, Kind]  # by number of the move
    sent: tuple[SentMessage, ...]
    work: tuple[LocalWork, ...]
    protections: Mapping[str, str] = field(default_factory=dict)  # by kind
    promise: tuple[str, ...] = ()  # what is promised of noise, and what that rests on
    computable: tuple[str, ...] = ()  # what can be computed in this run from what is sent

    def protection(self, kind: str) -> str:
        """What keeps a message of this kind from being read by its receiver."""
        return self.protections.get(kind, UNPROTECTED)

    def groups(self) -> list[MessageGroup]:
        """For each move, the messages inside each silo, or those between hubs, together."""
        messages: dict[tuple[int, str], list[SentMessage]] = {}
        for message in self.sent:
            ends = [party for party in (message.source, message.to) if isinstance(party, Client)]
            silo = ends[0].silo if ends else ""
            messages.setdefault((message.move, silo), []).append(message)
        return [
            MessageGroup(move, sent[0].kind, sent[0].tier, sent[0].direction, tuple(sent))
            for (move, _), sent in sorted(messages.items(), key=lambda item: item[0][0])
        ]

    def by_party(self) -> dict[Party, list[SentMessage]]:
        """Every message that would leave every party; nothing, for some."""
        sent: dict[Party, list[SentMessage]] = {party: [] for party in self.topology.parties}
        for message in self.sent:
            sent[message.source].append(message)
        return sent

    def total(self) -> dict[LedgerLine, tuple[int, int]]:
        """(tier, direction, kind) -> (messages, bytes) of the round, as the ledger has it."""
        totals: dict[LedgerLine, tuple[int, int]] = {}
        for _, kind, tier, direction, *_, size in self.sent:
            line = LedgerLine(tier, direction, kind)
            messages, sizes = totals.get(line, (0, 0))
            totals[line] = (messages + 1, sizes + size)
        return totals

    def about(self) -> dict[str, str]:
        """Kinds in the order of their first message, and what they carry."""
        sent = {message.move for message in self.sent}
        return {kind.name: kind.about for move, kind in sorted(self.kinds.items()) if move in sent}

    def reveals(self) -> dict[str, str]:
        """For each kind that is sent, what a receiver can compute from it."""
        sent = {message.move for message in self.sent}
        return {kind.name: kind.reveals for move, kind in self.kinds.items() if move in sent}

    def steps(self) -> Iterator[list[MessageGroup] | LocalWork]:
        """Moves (all groups of one number) and local work, in order."""
        moves: dict[int, list[MessageGroup]] = {}
        for group in self.groups():
            moves.setdefault(group.move, []).append(group)
        for number in range(max([0, *self.kinds]) + 1):
            if number in moves:
                yield moves[number]
            yield from (work for work in self.work if work.after == number)

    # For people and programs

    def text(self) -> str:
        """A table, who learns what, and a sequence diagram, for a terminal."""
        from .text import text

        return text(self)

    def draw(self, path: str | Path) -> None:
        """A sequence diagram, as a PNG."""
        from .draw import draw

        draw(self, Path(path))

    def to_json(self) -> dict[str, Any]:
        about, reveals = self.about(), self.reveals()
        return {
            "algorithm": self.algorithm,
            "silos": {silo: len(names) for silo, names in self.topology.clients.items()},
            "server": self.topology.server,
            "messages": len(self.sent),
            "bytes": sum(message.bytes for message in self.sent),
            "lines": [
                {
                    "move": line.move,
                    "kind": line.kind,
                    "about": about[line.kind],
                    "reveals": reveals[line.kind],
                    "tier": line.tier,
                    "direction": line.direction,
                    "from": line.source,
                    "to": line.to,
                    "shape": line.shape,
                    "messages": line.messages,
                    "bytes": line.bytes,
                    "protection": self.protection(line.kind),
                }
                for line in self.groups()
            ],
            "computable": list(self.computable),
            "privacy": list(self.promise),
            "work": [
                {
                    "after_move": work.after,
                    "at": "clients" if work.at_clients else "hubs",
                    "places": list(work.places),
                    "steps": work.steps,
                }
                for work in self.work
            ],
            "by_party": {
                str(party): [
                    {**_message(message), "protection": self.protection(message.kind)}
                    for message in sent
                ]
                for party, sent in self.by_party().items()
            },
        }


def _message(message: SentMessage) -> dict[str, Any]:
    return {
        "move": message.move,
        "kind": message.kind,
        "to": str(message.to),
        "tensors": [
            {"name": part.name, "shape": list(part.shape), "dtype": part.dtype}
            for part in message.shapes
        ],
        "bytes": message.bytes,
    }
