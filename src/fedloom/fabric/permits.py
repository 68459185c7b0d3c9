"""What may leave and reach a party: kinds, ways, shapes and dtypes, and nothing else.

Made from what `fedloom explain` lists for a run, agreed on by all parties, and held against every
message that is sent and every one that comes. Where a kind carries rows, their number is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch

from ..core import tree
from ..core.errors import FrameError, NotFiniteError
from ..core.topology import Client, Party, title
from .kinds import END, PACE, READY, Message
from .visits import FREE, RECALL

NOTHING = (READY.name, END.name, PACE.name, RECALL.name, FREE.name)  # whoever sends them
TOLD = "told"  # a decision of the master: names of silos
ROWS = -1  # any number
FEW = 1 << 16  # numbers that are quicker looked at together


class Way(NamedTuple):
    """From where to where: `bank/*` are the clients of a silo."""

    kind: str
    source: str
    to: str


Form = tuple[tuple[str, str, tuple[int, ...]], ...]  # of each tensor: place, dtype, shape


def way(kind: str, source: Party, to: Party) -> Way:
    return Way(kind, _place(source), _place(to))


def _place(party: Party) -> str:
    return f"{party.silo}/*" if isinstance(party, Client) else party


def form(tensors: Iterable[tuple[str, str, tuple[int, ...]]], rows: bool) -> Form:
    """Shapes as they are permitted."""
    return tuple(
        (name, dtype, (ROWS, *shape[1:]) if rows and shape else shape)
        for name, dtype, shape in tensors
    )


def form_of(payload: Any, rows: bool = True) -> Form:
    tensors = tree.named(payload).items()
    plain = [(name, str(a.dtype).removeprefix("torch."), tuple(a.shape)) for name, a in tensors]
    return form(plain, rows)


@dataclass(frozen=True)
class Permits:
    """Forms by way."""

    forms: Mapping[Way, frozenset[Form]]

    def check(self, message: Message) -> None:
        """FrameError for what was not agreed on."""
        if message.kind in (*NOTHING, TOLD):
            if not _is_word(message):
                raise _refused(message, "carries too much")
            return
        known = self.forms.get(way(message.kind, message.source, message.to))
        if known is None:
            raise _refused(message, "was not agreed on")
        tensors, shape = tree.apart(message.payload)
        names, others = tree.described(shape)
        found = [(n, _name(a.dtype), tuple(a.shape)) for n, a in zip(names, tensors, strict=True)]
        if others or not (tuple(found) in known or form(found, True) in known):
            told = ", ".join(f"{name} {dtype} {list(size)}" for name, dtype, size in found)
            raise _refused(message, f"is not as agreed on: {told or others}")

    def to_json(self) -> list[Any]:
        return [
            [*where, sorted([[*part] for part in one] for one in forms)]
            for where, forms in sorted(self.forms.items())
        ]

    @staticmethod
    def from_json(told: Iterable[Any]) -> Permits:
        return Permits(
            {
                Way(kind, source, to): frozenset(
                    tuple((name, dtype, tuple(shape)) for name, dtype, shape in one)
                    for one in forms
                )
                for kind, source, to, forms in told
            }
        )


@dataclass(frozen=True)
class Bounds:
    """How large numbers may be. `largest`: each of them, either way; `norms`: all of a message
    together, by kind."""

    largest: float = math.inf
    norms: Mapping[str, float] = field(default_factory=dict)

    def check(self, message: Message) -> None:
        """NotFiniteError where numbers are NaN, infinite or far out of range."""
        real = [a for a in tree.tensors(message.payload) if a.is_floating_point() and a.numel()]
        together = len(real) > 1 and sum(a.numel() for a in real) < FEW
        for a in [torch.cat([a.reshape(-1) for a in real])] if together else real:
            low, high = (float(end) for end in torch.aminmax(a))
            finite, size = math.isfinite(low) and math.isfinite(high), max(-low, high)
            if not finite or size > self.largest:
                told = f"{size:g}" if finite else "NaN or infinity"
                raise _too_large(message, told, self.largest)
        if message.kind in self.norms:
            norm = math.hypot(*(float(torch.linalg.vector_norm(a.double())) for a in real))
            if norm > self.norms[message.kind]:
                raise _too_large(message, f"a norm of {norm:g}", self.norms[message.kind])


def _refused(message: Message, why: str) -> FrameError:
    way = f"{message.kind} from {title(message.source)} to {title(message.to)}"
    return FrameError(f"{message.key}: {way} {why}")


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _too_large(message: Message, told: str, most: float) -> NotFiniteError:
    way = f"{message.kind} from {title(message.source)} to {title(message.to)}"
    return NotFiniteError(f"{message.key}: {told} in {way}; at most {most:g} is taken")


def _is_word(message: Message) -> bool:
    """Nothing, or a few names."""
    payload = message.payload
    if message.kind != TOLD:
        return payload is None
    return isinstance(payload, tuple) and all(isinstance(one, str) for one in payload)
