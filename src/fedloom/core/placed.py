"""Placed values: the values that an algorithm's round() works with.

A placed value lives somewhere: at each hub, at each client, at one party. round() cannot read it.
Local work goes through `at_clients`, `at_hubs` and `at`; to move a value takes a verb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from torch import Tensor

from .errors import PlacementError
from .payload import travels
from .topology import Client, title

T = TypeVar("T")


class _Missing:
    """The value of an absent party: local work on it gives MISSING, a move sends nothing."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


@travels
class Rows(NamedTuple):
    """Values with a leading row axis. `mask`: which rows are real and which are padding (or, for
    local work that is `in_shares`, each row's share)."""

    value: Tensor
    mask: Tensor


class Noise(NamedTuple):
    """Noise for each of a client's rows, flat. `normal`: for its block's last layer with weights;
    `uniform`: for the earlier ones."""

    normal: Tensor
    uniform: Tensor


class Batch(NamedTuple):
    """A client's rows of a minibatch: [b, ...], or [Q, b, ...] for Q fresh minibatches. `noise`:
    what perturbs their embeddings; `keys`: what their masks of dropout are named by."""

    x: Tensor
    y: Tensor | None
    mask: Tensor
    noise: Noise | None = None
    keys: Tensor | None = None


class RowMap:
    """Which positions of a minibatch are whose: each client fills some of the `size` positions.

    Every engine has its own subclass. A hub knows its clients' positions, a client its own.
    """

    size: int


def _refuse(what: str) -> Any:
    def method(self: Placed, *_: Any, **__: Any) -> NoReturn:
        raise PlacementError(
            f"{what} on a value that lives {self.where()}: an algorithm cannot read a placed "
            "value; do local work with at_clients, at_hubs or at, and decide at one party"
        )

    return method


class Placed:
    """A value that lives at some parties."""

    def where(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<a value {self.where()}>"

    __hash__ = object.__hash__


for _name, _what in {
    "__bool__": "a decision (if)",
    "__getitem__": "indexing",
    "__iter__": "iteration",
    "__len__": "len()",
    "__float__": "float()",
    "__int__": "int()",
    "__eq__": "comparison",
    "__ne__": "comparison",
    "__lt__": "comparison",
    "__gt__": "comparison",
    "__le__": "comparison",
    "__ge__": "comparison",
    **{
        f"__{side}{op}__": "arithmetic"
        for op in ("add", "sub", "mul", "truediv", "matmul", "pow")
        for side in ("", "r")
    },
    "__neg__": "arithmetic",
}.items():
    setattr(Placed, _name, _refuse(_what))


class AtHubs(Placed, Generic[T]):
    """One value at each of some hubs (or at the server). Only those of hosted parties are here."""

    def __init__(self, values: Mapping[str, T], places: tuple[str, ...]):
        self._values = dict(values)
        self.places = places

    def where(self) -> str:
        return "at " + ", ".join(title(place) for place in self.places)

    def get(self, party: str, user: str) -> T:
        """The value at one party, for the engine; a PlacementError if it is not there."""
        if party not in self._values:
            reason = "not hosted here" if party in self.places else "elsewhere"
            raise PlacementError(
                f"{user} at {title(party)} needs a value that lives {self.where()} ({reason}): "
                "move it there with a verb"
            )
        return self._values[party]

    def held(self) -> dict[str, T]:
        """The values of the hubs hosted here, by hub."""
        return dict(self._values)


class OnDemand(AtHubs[T]):
    """As AtHubs, but each value is computed when it is first read. `parties`: the hubs hosted
    here."""

    def __init__(self, work: Callable[[str], T], parties: Sequence[str], places: tuple[str, ...]):
        super().__init__({}, places)
        self._work, self._parties = work, parties

    def get(self, party: str, user: str) -> T:
        if party in self._parties and party not in self._values:
            self._values[party] = self._work(party)
        return super().get(party, user)

    def held(self) -> dict[str, T]:
        return {party: self.get(party, "held") for party in self._parties}


class AtClients(Placed, Generic[T]):
    """One value at each client. Every engine stores it in its own way."""

    def where(self) -> str:
        return "at the clients"

    def get(self, client: Client, user: str) -> T:
        """The value at one client, for engines that store one by one."""
        raise NotImplementedError


class Known(Placed, Generic[T]):
    """Known to every party without a message: from the run file or a common stream."""

    def __init__(self, value: T):
        self.value = value

    def where(self) -> str:
        return "everywhere (common knowledge)"


class PerSilo(Placed, Generic[T]):
    """Known to a silo's hub and all its clients without a message."""

    def __init__(self, values: Mapping[str, T]):
        self.values = dict(values)

    def where(self) -> str:
        return "in each silo (known there)"
