"""Permits: the kinds, routes, shapes and dtypes of messages that may leave or reach a party.

They are made from the messages that `fedloom explain` lists for a run. All parties agree on them,
and every message is checked when it is sent and when it is received. The number of rows is free.
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

NOTHING = (READY.name, END.name, PACE.name, RECALL.name, FREE.name)  # empty; from anybody
DECISION = "told"  # a decision of the master: names of silos
ROWS = -1  # any number of rows
FEW = 1 << 16  # up to so many numbers, one check of all tensors together is faster


class Route(NamedTuple):
    """The kind, the source and the receiver of messages. `bank/*`: the clients of a silo."""

    kind: str
    source: str
    to: str


PayloadForm = tuple[tuple[str, str, tuple[int, ...]], ...]  # of each tensor: place, dtype, shape


def route_of(kind: str, source: Party, to: Party) -> Route:
    return Route(kind, _place(source), _place(to))


def _place(party: Party) -> str:
    return f"{party.silo}/*" if isinstance(party, Client) else party


def form(tensors: Iterable[tuple[str, str, tuple[int, ...]]], rows: bool) -> PayloadForm:
    """A form from (path, dtype, shape) of tensors. `rows`: any number of rows is permitted."""
    return tuple(
        (name, dtype, (ROWS, *shape[1:]) if rows and shape else shape)
        for name, dtype, shape in tensors
    )


def form_of(payload: Any, rows: bool = True) -> PayloadForm:
    tensors = tree.named(payload).items()
    plain = [(name, str(a.dtype).removeprefix("torch."), tuple(a.shape)) for name, a in tensors]
    return form(plain, rows)


@dataclass(frozen=True)
class Permits:
    """The permitted forms of each route."""

    forms: Mapping[Route, frozenset[PayloadForm]]

    def check(self, message: Message) -> None:
        """FrameError for a message that was not agreed on."""
        if message.kind in (*NOTHING, DECISION):
            if not _is_small(message):
                raise _refused(message, "carries too much")
            return
        known = self.forms.get(route_of(message.kind, message.source, message.to))
        if known is None:
            raise _refused(message, "was not agreed on")
        tensors, shape = tree.apart(message.payload)
        names, others = tree.described(shape)
        actual = [(n, _name(a.dtype), tuple(a.shape)) for n, a in zip(names, tensors, strict=True)]
        if others or not (tuple(actual) in known or form(actual, True) in known):
            described = ", ".join(f"{name} {dtype} {list(size)}" for name, dtype, size in actual)
            raise _refused(message, f"is not as agreed on: {described or others}")

    def to_json(self) -> list[Any]:
        return [
            [*where, sorted([[*tensor] for tensor in form] for form in forms)]
            for where, forms in sorted(self.forms.items())
        ]

    @staticmethod
    def from_json(saved: Iterable[Any]) -> Permits:
        return Permits(
            {
                Route(kind, source, to): frozenset(
                    tuple((name, dtype, tuple(shape)) for name, dtype, shape in form)
                    for form in forms
                )
                for kind, source, to, forms in saved
            }
        )


@dataclass(frozen=True)
class Bounds:
    """Limits on numbers. `largest`: of the absolute value of each number; `norms`: of the norm of a
    message, by kind."""

    largest: float = math.inf
    norms: Mapping[str, float] = field(default_factory=dict)

    def check(self, message: Message) -> None:
        """NotFiniteError where numbers are NaN, infinite or too large."""
        real = [a for a in tree.tensors(message.payload) if a.is_floating_point() and a.numel()]
        together = len(real) > 1 and sum(a.numel() for a in real) < FEW
        for a in [torch.cat([a.reshape(-1) for a in real])] if together else real:
            low, high = (float(end) for end in torch.aminmax(a))
            finite, size = math.isfinite(low) and math.isfinite(high), max(-low, high)
            if not finite or size > self.largest:
                size_text = f"{size:g}" if finite else "NaN or infinity"
                raise _too_large(message, size_text, self.largest)
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


def _too_large(message: Message, what: str, most: float) -> NotFiniteError:
    way = f"{message.kind} from {title(message.source)} to {title(message.to)}"
    return NotFiniteError(f"{message.key}: {what} in {way}; at most {most:g} is taken")


def _is_small(message: Message) -> bool:
    """Whether the message carries nothing or, if it is a decision, names only."""
    payload = message.payload
    if message.kind != DECISION:
        return payload is None
    return isinstance(payload, tuple) and all(isinstance(name, str) for name in payload)
