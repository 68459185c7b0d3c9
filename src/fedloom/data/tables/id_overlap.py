"""How well the ids of silos match, and a check that enough of them do.

`share` is the part of the smallest silo's rows that is used: silos cannot have more rows in common
than the smallest of them has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import DataError

LEAST = 0.5  # default of min_match
SHOWN = 12  # clients of a silo on one line
NAMED = 3  # clients in an error

MatchCounts = tuple[int, int]  # rows that match, and all rows


@dataclass(frozen=True)
class Overlap:
    """`clients`: by silo and client, how many rows have ids that every silo has, and how many could
    be used. `more`: {condition: how many more ids would match} (id_forms.py)."""

    clients: Mapping[str, Mapping[str, MatchCounts]]
    more: Mapping[str, int] = field(default_factory=dict)

    @property
    def silos(self) -> dict[str, MatchCounts]:
        return {
            silo: (
                sum(matched for matched, _ in clients.values()),
                sum(n for _, n in clients.values()),
            )
            for silo, clients in self.clients.items()
        }

    @property
    def smallest(self) -> str:
        silos = self.silos
        return min(silos, key=lambda silo: silos[silo][1])

    @property
    def share(self) -> float:
        return _share(self.silos[self.smallest])

    @property
    def advice(self) -> str:
        """What would make more ids match; empty if nothing is known."""
        if not self.more:
            return ""
        (condition, count), *others = self.more.items()
        clauses = [f"{count:,} more ids would match if {condition}"]
        clauses += [f"{count:,} if {condition}" for condition, count in others]
        return f"{', '.join(clauses)}: write ids alike in all files"

    def lines(self) -> list[str]:
        """A line of text for each silo."""
        lines = []
        for silo, counts in self.silos.items():
            clients = self.clients[silo]
            names, more = list(clients), ""
            if len(names) > SHOWN:
                names = sorted(names, key=lambda name: _share(clients[name]))[:SHOWN]
                least = _percent(clients[names[-1]])
                more = f", and {len(clients) - SHOWN} others of at least {least}"
            by_client = ", ".join(f"{name} {counted(clients[name])}" for name in names)
            detail = f": {by_client}{more}" if len(clients) > 1 else ""
            lines.append(f"matched: {silo} {counted(counts, ' rows')}{detail}")
        return lines

    def check(self, least: float) -> None:
        """Refuse a share below `least`: usually ids are spelled differently."""
        if self.share >= least:
            return
        silos = [f"{silo} {counted(counts)}" for silo, counts in self.silos.items()]
        worst = sorted(
            (_share(counts), f"client {silo}/{name} {counted(counts)}")
            for silo, clients in self.clients.items()
            for name, counts in clients.items()
            if len(clients) > 1 and _share(counts) < least
        )
        matched = "; ".join([", ".join(silos), *(line for _, line in worst[:NAMED])])
        advice = f" {self.advice}." if self.advice else ""
        raise DataError(
            f"only {_percent(self.silos[self.smallest])} of the ids of silo {self.smallest}, the "
            f"smallest, are in every silo, and min_match asks for {100 * least:g} %: {matched}."
            f"{advice} If so few are meant to match, lower min_match"
        )

    def by_silo(self) -> Overlap:
        """The same, summed over the clients of each silo."""
        return Overlap({silo: {"all": counts} for silo, counts in self.silos.items()}, self.more)

    def to_json(self) -> dict[str, Any]:
        clients = {
            silo: {c: list(n) for c, n in clients.items()} for silo, clients in self.clients.items()
        }
        return {"share": self.share, "clients": clients, "more": dict(self.more)}


def _share(counts: MatchCounts) -> float:
    matched, rows = counts
    return matched / rows if rows else 0.0


def _percent(counts: MatchCounts) -> str:
    """Rounded down, so that 100 % means all."""
    matched, rows = counts
    return f"{100 * matched // max(1, rows)} %"


def counted(counts: MatchCounts, what: str = "") -> str:
    """As text: 3 of 4 (75 %)."""
    return f"{counts[0]:,} of {counts[1]:,}{what} ({_percent(counts)})"
