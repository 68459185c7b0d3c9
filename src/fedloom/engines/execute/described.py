"""Clients' work as it is described to an executor that computes a mean in one go.

The values of the stacked engine are such descriptions. An executor sees of them what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from ...core.rng import Floats, Ints

Way = Literal["same", "silo", "rows"]
"""Where a client's own part of an argument is: it is the same for all, by silo, or the client's
rows."""


class Flat(NamedTuple):
    """The rows of some clients, one after the other. `over`: their positions, counted through the
    minibatches of the clients' silos; `ids`: what rows they are; `counts`: how many of each silo;
    `starts`: where those of each client begin, and where the last one's end; `numbers`: the
    different numbers of rows that clients have."""

    over: Tensor
    ids: Tensor
    counts: tuple[int, ...]
    starts: Ints
    numbers: tuple[int, ...]


class Given(NamedTuple):
    """An argument of work for all clients, and where each client's own part of it is."""

    value: Any
    way: Way


class Minibatch(Protocol):
    """Which client has which rows of a minibatch."""

    rows: Ints
    """How many each client has."""

    @property
    def several(self) -> bool:
        """Whether every local step has a minibatch of its own."""

    def flat(self, silos: tuple[str, ...], places: Ints, of: Ints) -> Flat:
        """The rows of these clients; `of`: which silo each client is in."""


class Described(Protocol):
    """A value at clients: work `f` on other values, or an argument."""

    @property
    def f(self) -> Callable[..., Any] | None:
        """What is computed; None for an argument."""

    @property
    def values(self) -> Sequence[Described]:
        """What it is computed of."""

    @property
    def minibatch_rows(self) -> Minibatch | None:
        """The minibatch whose rows it has, if it has rows."""

    @property
    def is_shared(self) -> bool:
        """Whether it has rows of a minibatch, or is the same for all of a silo's clients: noise,
        say, is neither."""

    def mixes(self, silos: tuple[str, ...]) -> bool:
        """Whether clients of these silos can share a computation of it."""

    def given(self, silos: tuple[str, ...], flat: Flat, named: bool) -> Given:
        """An argument for the clients of these silos. `named`: a silo's part of the task has the
        silo's name."""


class Mean(NamedTuple):
    """A mean of clients that is asked for: `of`: which of the silos the client at each of `places`
    is in; `times`: how many clients each place of the axis stands for (None: one); `weights`: of
    clients (None: 1)."""

    silos: tuple[str, ...]
    places: Ints
    of: Ints
    times: Ints | None
    value: Described
    weights: Described | None


class Sums(NamedTuple):
    """`total`: by silo, a tree with a first axis for silos; `form`: the signature of a client's
    value; `parts`: what weights add up to, by silo; `weights`: each client's."""

    total: Any
    form: Any
    parts: Tensor
    weights: Floats
