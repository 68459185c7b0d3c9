"""An explanation for a terminal: a table, who learns what, a sequence diagram."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from ..core.topology import Client
from .explanation import Explanation, LocalWork, MessageGroup
from .lanes import Lane, Repeat, arrows, counted, lanes_of, place_of, repeats

SILOS = 2  # that have lanes of their own
WIDE = 100  # columns of a line of sentences
HEADER = ("move", "kind", "from", "to", "what", "messages", "bytes", "times", "protection")
TO_THE_RIGHT = {0, 5, 6, 7}


BEFORE = (
    "Not shown, before the first round: everyone knows the run file and how many rows are\n"
    "common; ids are matched between silos; of tables, clients tell their hub counts, means and\n"
    "categories of their columns, which are saved with the model. Predicting sends embeddings\n"
    "again."
)


def text(explanation: Explanation) -> str:
    parts = repeats(list(explanation.steps()))
    many = explanation.topology.clients.values()
    head = (
        f"One round of {explanation.algorithm}, {len(many)} silos, "
        f"{sum(map(len, many)):,} clients, everyone there"
    )
    blocks = [
        [head],
        [*_table(explanation, parts), "", *_totals(explanation)],
        ["Who learns what", *_learns(explanation)],
        ["What can be computed from it", *_wrapped(explanation.computable)],
        ["In order", *_diagram(explanation, parts)],
        [BEFORE],
    ]
    if not explanation.computable:
        del blocks[3]
    if explanation.promise:
        blocks.insert(-2, ["Privacy", *_wrapped(explanation.promise)])
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks) + "\n"


def _table(explanation: Explanation, parts: Sequence[Repeat]) -> list[str]:
    rows: list[tuple[str, ...]] = [HEADER]
    for part in parts:
        for turns in zip(*part.turns, strict=True):
            if not isinstance(turns[0], LocalWork):
                for place, line in enumerate(turns[0]):
                    again = [turn[place] for turn in turns if not isinstance(turn, LocalWork)]
                    rows.append((*_row(line, again), explanation.protection(line.kind)))
    wide = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in TO_THE_RIGHT else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, wide, strict=True))
        )
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in wide), *lines[1:]]


def _row(line: MessageGroup, again: Sequence[MessageGroup]) -> tuple[str, ...]:
    together = line._replace(sent=tuple(message for group in again for message in group.sent))
    return (
        str(line.move),
        line.kind,
        line.source,
        line.to,
        together.shape,
        f"{line.messages:,}",
        f"{line.bytes:,}",
        str(len(again)),
    )


def _totals(explanation: Explanation) -> Iterator[str]:
    for tier, where in (("bottom", "inside silos"), ("top", "between hubs")):
        sizes = [message.bytes for message in explanation.sent if message.tier == tier]
        messages = "1 message" if len(sizes) == 1 else f"{len(sizes):,} messages"
        yield f"In all {where}: {messages}, {sum(sizes):,} bytes"


def _learns(explanation: Explanation) -> list[str]:
    """By receiver, in words."""
    about, reveals = explanation.about(), explanation.reveals()
    by_receiver = dict[str, dict[str, str]]()
    silos: dict[str, set[str]] = {}
    for line in explanation.groups():
        silos.setdefault(line.kind, set()).update(_silos(line))
    for line in explanation.groups():
        everywhere = silos[line.kind] == set(explanation.topology.silos)
        some = ", ".join(sorted(silos[line.kind]))
        if line.tier == "top":
            every = line.direction == "across"
            who = "a hub, from every other hub" if every else f"{line.to}, from {line.source}"
        elif line.direction == "down":
            who = f"a client{'' if everywhere else f' of {some}'}, from its hub"
        else:
            who = f"{'a hub' if everywhere else f'hub {some}'}, from its clients"
        by_receiver.setdefault(who[0].upper() + who[1:], {})[line.kind] = about[line.kind]
    wide = max((len(kind) for kind in about), default=0)
    lines = []
    for who, kinds in by_receiver.items():
        lines.append(f"  {who}:")
        for kind, words in kinds.items():
            lines.append(f"    {kind.ljust(wide)}  {words}")
            if reveals[kind]:
                by = " " * (wide + 6)
                lines += _wrapped([f"gives away: {reveals[kind]}"], by)
    return lines or ["  Nobody sends anything."]


def _wrapped(lines: Iterable[str], by: str = "  ") -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(line, WIDE, initial_indent=by, subsequent_indent=f"{by}  ")


def _silos(line: MessageGroup) -> set[str]:
    ends = (party for message in line.sent for party in (message.source, message.to))
    return {party.silo for party in ends if isinstance(party, Client)}


class _Canvas:
    """Lanes from top to bottom, one row of characters at a time."""

    def __init__(self, lanes: Sequence[Lane], gap: int):
        self.lanes, self.gap = lanes, gap
        self.columns = [5 + gap // 2 + place * gap for place in range(len(lanes))]

    def head(self, which: int) -> str:
        row = [" "] * (self.columns[-1] + self.gap)
        for column, lane in zip(self.columns, self.lanes, strict=True):
            _write(row, column, lane.label[which])
        return "".join(row)

    def row(self) -> list[str]:
        row = [" "] * (self.columns[-1] + self.gap // 2 + 2)
        for column in self.columns:
            row[column] = "|"
        return row

    def move(self, row: list[str], ends: Sequence[tuple[int, int]], label: str) -> None:
        """One line of messages, from lane to lane."""
        involved = sorted({place for pair in ends for place in pair})
        low, high = self.columns[involved[0]], self.columns[involved[-1]]
        row[low + 1 : high] = "-" * (high - low - 1)
        for place in involved:
            row[self.columns[place]] = "|"
        for source, to in ends:
            before = to > source
            row[self.columns[to] + (-1 if before else 1)] = ">" if before else "<"
        middle = (low + self.columns[involved[1]]) // 2
        _write(row, middle, f" {label} ")


def _write(row: list[str], middle: int, words: str) -> None:
    start = middle - len(words) // 2
    row[start : start + len(words)] = words


def _diagram(explanation: Explanation, parts: Sequence[Repeat]) -> list[str]:
    lanes = lanes_of(explanation, SILOS)
    longest = max((len(line.kind) for line in explanation.groups()), default=0)
    canvas = _Canvas(lanes, max(20, longest + 7))
    lines = [canvas.head(0), canvas.head(1), "".join(canvas.row())]
    for part in parts:
        if part.times > 1:
            lines.append(f"{part.times} times:".ljust(len(canvas.row()), "."))
        for step in part.turns[0]:
            row = canvas.row()
            if isinstance(step, LocalWork):
                for place in step.places:
                    party = Client(place, "") if step.at_clients else place
                    lane = place_of(lanes, party)
                    if lane is not None:
                        _write(row, canvas.columns[lane], f"[{_steps(step.steps)}]")
                lines.append("".join(row))
            else:
                lines.append(_move(canvas, row, step))
        if part.times > 1:
            lines.append("." * len(canvas.row()))
    return [*lines, "".join(canvas.row())]


def _move(canvas: _Canvas, row: list[str], step: Sequence[MessageGroup]) -> str:
    for line in step:
        ends = arrows(canvas.lanes, line)
        if ends:
            canvas.move(row, ends, line.kind)
    number = str(step[0].move).rjust(3)
    row[: len(number)] = number
    count, total = sum(line.messages for line in step), sum(line.bytes for line in step)
    return "".join(row) + counted(count, total)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"
