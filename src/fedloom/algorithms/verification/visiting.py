"""The closed formula of a round of visits: what was asked, answered and called for, to the byte.

It depends on who came (silos have unequal widths and numbers of clients), so it takes the recorded
turns; without a record, everyone comes in turn.
"""

from __future__ import annotations

from collections import Counter

from ...core.topology import SERVER
from ...fabric.kinds import Direction, Kind, Tier
from ...fabric.schedule import Turn
from ...fabric.visits import RECALL, numbered
from ..central import LABELS
from ..shared.tiered import EMBEDDING, HUB_EMBEDDING, MODEL, UPDATE
from ..vafl.kinds import GRADIENT, HUB_LABELS, OWN_GRADIENT
from ..vafl.visiting import PRIMED_ROWS, Visiting
from .costs import Cost, Facts, cost, total


@cost.register(Visiting)
def visiting_cost(algorithm: Visiting, facts: Facts) -> Cost:
    silos = tuple(facts.clients)
    holder = algorithm.labels_at or silos[0]
    at = SERVER if algorithm.master == "server" else holder
    model = {j: facts.model[j] - facts.head for j in silos}  # theta_0 stays with the master
    weight = 0 if algorithm.weighting == "uniform" else facts.shapes.dtype.itemsize
    messages: Counter[tuple[Tier, Direction, Kind]] = Counter()
    sizes: Counter[tuple[Tier, Direction, Kind]] = Counter()

    def add(tier: Tier, direction: Direction, kind: Kind, count: int, size: int) -> None:
        messages[tier, direction, kind] += count
        sizes[tier, direction, kind] += size

    def asked(silo: str, rows: int, pieces: int = 1) -> None:
        k, row_bytes, label = (
            facts.clients[silo],
            facts.row("embedding", silo),
            facts.row("label", silo),
        )
        away = pieces if silo != at else 0
        add("bottom", "down", MODEL, k, k * model[silo])
        add("bottom", "up", EMBEDDING, pieces * k, rows * row_bytes)
        add("top", "up", HUB_EMBEDDING, away, rows * (row_bytes + 1) if away else 0)
        if silo == holder:
            add("bottom", "up", LABELS, pieces * k, rows * label)
            add("top", "up", HUB_LABELS, away, rows * (label + 1) if away else 0)

    def learned(silo: str, rows: int) -> None:
        k, size = facts.clients[silo], rows * (facts.row("embedding", silo) + 1)
        add("top", "down", GRADIENT, int(silo != at), size if silo != at else 0)
        add("bottom", "down", OWN_GRADIENT, k, size)
        add("bottom", "up", UPDATE, k, k * (model[silo] + weight))

    if algorithm.prime and facts.round == 0:
        for silo in silos:
            asked(silo, facts.size, -(-facts.size // PRIMED_ROWS))
    rows, seen = algorithm.rows(facts.size), Counter[str]()
    for turn in facts.turns or everyone_in_turn(silos, algorithm.turns(len(silos)), algorithm):
        visits, calls = numbered(turn, 0, seen)
        for visit in visits:
            asked(visit.silo, rows)
            learned(visit.silo, rows)
        for call in calls:
            add("top", "down", RECALL, int(call.silo != at), 0)
            asked(call.silo, rows * len(call.nth))
        seen.update(turn.visitors)
    return total(*((*line, count, sizes[line]) for line, count in messages.items()))


def everyone_in_turn(silos: tuple[str, ...], turns: int, algorithm: Visiting) -> tuple[Turn, ...]:
    t, n = algorithm.group_size, len(silos)
    return tuple(
        Turn(tuple(silos[(t * turn + place) % n] for place in range(t))) for turn in range(turns)
    )
