"""What both diagrams share: who has a lane, and which moves repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core.topology import SERVER, Client, Party
from ..report.words import size
from .explanation import Explanation, LocalWork, MessageGroup

DiagramStep = list[MessageGroup] | LocalWork

NAME = 18  # characters of a lane's name


class Lane(NamedTuple):
    """A column of a diagram: a silo's clients together, a hub, the server, or what is not shown."""

    party: str  # a silo, SERVER, or "" for the silos that are not shown
    clients: bool
    above: str
    name: str

    @property
    def label(self) -> tuple[str, str]:
        return self.above, self.name


def lanes_of(explanation: Explanation, most: int) -> list[Lane]:
    """Lanes of at most so many silos: first those that others send to, then in their order."""
    topology = explanation.topology
    chosen = _chosen(explanation, most)
    lanes: list[Lane] = []
    for place, silo in enumerate(chosen):
        count = f" ({len(topology.clients[silo]):,})"
        clients = Lane(silo, True, "clients of", shortened(silo, NAME - len(count)) + count)
        hub = Lane(silo, False, "hub", shortened(silo, NAME))
        lanes += [clients, hub] if place == 0 else [hub, clients]
    hidden = len(topology.silos) - len(chosen)
    if hidden:
        lanes.append(Lane("", False, f"{hidden} more", "silo" if hidden == 1 else "silos"))
    if topology.server:
        lanes.append(Lane(SERVER, False, "the", SERVER))
    return lanes


def _chosen(explanation: Explanation, most: int) -> list[str]:
    silos = explanation.topology.silos
    special = set()
    for group in explanation.groups():
        if group.tier == "top" and group.direction != "across":
            ends = ({m.to for m in group.sent}, {m.source for m in group.sent})
            special |= {hub for end in ends if len(end) == 1 for hub in end if hub in silos}
    first = [*(silo for silo in silos if silo in special), *silos]
    shown = list(dict.fromkeys(first))[:most]
    return [silo for silo in silos if silo in shown]


def place_of(lanes: Sequence[Lane], party: Party) -> int | None:
    """The lane of a party. Hubs that are not shown share one, their clients have none."""
    silo, clients = (party.silo, True) if isinstance(party, Client) else (party, False)
    places = {(lane.party, lane.clients): place for place, lane in enumerate(lanes)}
    return places.get((silo, clients), None if clients else places.get(("", False)))


def arrows(lanes: Sequence[Lane], group: MessageGroup) -> list[tuple[int, int]]:
    """From which lane to which a line's messages go; none inside a silo that is not shown."""
    ends = []
    for message in group.sent:
        source, to = place_of(lanes, message.source), place_of(lanes, message.to)
        if source is not None and to is not None and source != to:
            ends.append((source, to))
    return list(dict.fromkeys(ends))


def shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def counted(messages: int, bytes: int) -> str:
    return f"{messages:,} {'message' if messages == 1 else 'messages'}, {size(bytes)}"


class Repeat(NamedTuple):
    """Steps that come several times in a row: [turn][step]."""

    turns: list[list[DiagramStep]]

    @property
    def times(self) -> int:
        return len(self.turns)


def repeats(steps: Sequence[DiagramStep]) -> list[Repeat]:
    """The steps of a round, with those that come again and again folded."""
    marks = [_mark(step) for step in steps]
    parts: list[Repeat] = []
    at = 0
    while at < len(steps):
        period, times = _longest(marks[at:])
        ends = range(at, at + times * period, period)
        parts.append(Repeat([list(steps[end : end + period]) for end in ends]))
        at += period * times
    return _joined(parts)


def _longest(marks: Sequence[Any]) -> tuple[int, int]:
    """(period, times) of what repeats from the start and covers most; (1, 1) where nothing does."""
    best = (1, 1)
    for period in range(1, len(marks) // 2 + 1):
        times = 1
        while marks[:period] == marks[period * times : period * (times + 1)]:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best


def _joined(parts: Sequence[Repeat]) -> list[Repeat]:
    """Neighbours that do not repeat, as one part."""
    joined: list[Repeat] = []
    for part in parts:
        if joined and part.times == joined[-1].times == 1:
            joined[-1] = Repeat([joined[-1].turns[0] + part.turns[0]])
        else:
            joined.append(part)
    return joined


def _mark(step: DiagramStep) -> Any:
    """Equal for steps that look the same."""
    if isinstance(step, LocalWork):
        return step._replace(after=0)
    return [
        (group.kind, group.direction, group.bytes, [(m.source, m.to) for m in group.sent])
        for group in step
    ]
