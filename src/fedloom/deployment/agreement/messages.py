"""The messages of an agreement on rows (align.py): their order and form."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from ...core.errors import DataError, reason
from ...core.topology import SERVER, Topology
from ...fabric.permits import Permits, Route, form_of
from .id_variants import BLANK
from .own_tables import HASH

KINDS = ("hashes", "others", "numbers", "variants", "silo-variants", "kinds", "summary", "facts")
MOVES = {kind: move for move, kind in enumerate((*KINDS, "basis"), 1)}
BETWEEN_HUBS = ("others", "silo-variants", "facts")
JSON = torch.zeros(1, dtype=torch.uint8)
FORMS: dict[str, dict[str, Tensor]] = {
    "hashes": {"ids": torch.zeros(1, HASH, dtype=torch.uint8), "told": JSON},
    "others": {"ids": torch.zeros(1, HASH, dtype=torch.uint8)},
    "numbers": {"numbers": torch.zeros(1, dtype=torch.int64), "common": JSON},
    "variants": {**BLANK},
    "silo-variants": {**BLANK},
    "kinds": {"told": JSON},
    "summary": {"told": JSON},
    "facts": {"told": JSON},
    "basis": {"told": JSON},
}


class AlignmentRefused(DataError):
    """Found by every hub by itself, and sent to its clients: no abort is needed."""


def permits(topology: Topology) -> Permits:
    """What may pass: the messages of this file, and nothing else."""
    forms = {kind: form_of(payload) for kind, payload in FORMS.items()}
    ways: dict[Route, frozenset[Any]] = {}
    for silo in topology.silos:
        for kind, source, to in (
            *((kind, f"{silo}/*", silo) for kind in ("hashes", "variants", "summary")),
            *((kind, silo, f"{silo}/*") for kind in ("numbers", "kinds", "basis")),
            *((kind, silo, other) for other in topology.silos for kind in BETWEEN_HUBS),
            ("basis", silo, SERVER),
        ):
            ways[Route(kind, source, to)] = frozenset([forms[kind]])
    return Permits(ways)


def packed(value: Any) -> Tensor:
    """JSON as bytes in a tensor."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def unpacked(value: Tensor) -> Any:
    try:
        return json.loads(bytes(value.numpy()).decode())
    except ValueError as problem:
        raise DataError(f"a message that is no JSON ({reason(problem)})") from None


def go_ahead(message: dict[str, Any]) -> dict[str, Any]:
    """A hub's message, unless it says that the agreement was refused."""
    if "refused" in message:
        raise AlignmentRefused(str(message["refused"]))
    return message
