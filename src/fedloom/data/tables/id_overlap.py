"""How well the ids of silos match, and whether that can be right.

`share` is how much of the smallest silo is used: no two silos can have more rows in common than the
smaller of them has, and no more silos than the smallest of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import DataError

LEAST = 0.5  # of the smallest silo
SHOWN = 12  # clients of a silo on one line
NAMED = 3  # clients in an error

Counts = tuple[int, int]  # rows that match, of how many


@dataclass(frozen=True)
class Overlap:
    """`clients`: by silo, how many rows of each have ids that every silo has, of how many that
    could be used. `more`: {condition: how many ids would match besides} (idforms.py)."""

    clients: Mapping[str, Mapping[str, Counts]]
    more: Mapping[str, int] = field(default_factory=dict)

    @property
    def silos(self) -> dict[str, Counts]:
        return {
            silo: (sum(matched for matched, _ in held.values()), sum(n for _, n in held.values()))
            for silo, held in self.clients.items()
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
        """What would make more ids match, if anything would."""
        if not self.more:
            return ""
        (condition, count), *others = self.more.items()
        told = [f"{count:,} more ids would match if {condition}"]
        told += [f"{count:,} if {condition}" for condition, count in others]
        return f"{', '.join(told)}: write ids alike in all files"

    def lines(self) -> list[str]:
        """For people, a line for each silo."""
        found = []
        for silo, counts in self.silos.items():
            held = self.clients[silo]
            names, more = list(held), ""
            if len(names) > SHOWN:
                names = sorted(names, key=lambda name: _share(held[name]))[:SHOWN]
                more = f", and {len(held) - SHOWN} others of at least {_percent(held[names[-1]])}"
            each = ", ".join(f"{name} {counted(held[name])}" for name in names)
            told = f": {each}{more}" if len(held) > 1 else ""
            found.append(f"matched: {silo} {counted(counts, ' rows')}{told}")
        return found

    def check(self, least: float) -> None:
        """Refuse a share below `least`: far more often a slip in writing ids than the truth."""
        if self.share >= least:
            return
        silos = [f"{silo} {counted(counts)}" for silo, counts in self.silos.items()]
        worst = sorted(
            (_share(counts), f"client {silo}/{name} {counted(counts)}")
            for silo, held in self.clients.items()
            for name, counts in held.items()
            if len(held) > 1 and _share(counts) < least
        )
        told = "; ".join([", ".join(silos), *(line for _, line in worst[:NAMED])])
        advice = f" {self.advice}." if self.advice else ""
        raise DataError(
            f"only {_percent(self.silos[self.smallest])} of the ids of silo {self.smallest}, the "
            f"smallest, are in every silo, and min_match asks for {100 * least:g} %: {told}."
            f"{advice} If so few are meant to match, lower min_match"
        )

    def by_silo(self) -> Overlap:
        """Without the clients."""
        return Overlap({silo: {"all": counts} for silo, counts in self.silos.items()}, self.more)

    def to_json(self) -> dict[str, Any]:
        held = {silo: {c: list(n) for c, n in held.items()} for silo, held in self.clients.items()}
        return {"share": self.share, "clients": held, "more": dict(self.more)}


def _share(counts: Counts) -> float:
    matched, rows = counts
    return matched / rows if rows else 0.0


def _percent(counts: Counts) -> str:
    """Rounded down: all is all."""
    matched, rows = counts
    return f"{100 * matched // max(1, rows)} %"


def counted(counts: Counts, what: str = "") -> str:
    """How many of how many, and what part that is."""
    return f"{counts[0]:,} of {counts[1]:,}{what} ({_percent(counts)})"
