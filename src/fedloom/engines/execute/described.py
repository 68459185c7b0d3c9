"""Clients' work, described for executors that compute a whole mean at once.

The lazy values of the stacked engine are such descriptions. An executor sees no more of them than
what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from ...core.rng import Floats, Ints

Layout = Literal["same", "silo", "rows"]
"""How a client's part of an argument is found: it is the whole argument, that of its silo, or its
rows."""


class FlatRows(NamedTuple):
    """The rows of some clients, concatenated. `over`: their indices into the concatenated
    minibatches of the clients' silos; `ids`: the numbers of the rows; `counts`: rows of each silo;
    `starts`: where each client's rows begin, and the last one's end; `numbers`: the different row
    counts of clients."""

    over: Tensor
    ids: Tensor
    counts: tuple[int, ...]
    starts: Ints
    numbers: tuple[int, ...]


class Argument(NamedTuple):
    """An argument of work for all clients, and how a client's part of it is found."""

    value: Any
    layout: Layout


class Minibatch(Protocol):
    """The rows of a minibatch by client."""

    rows: Ints
    """The number of each client's rows."""

    @property
    def several(self) -> bool:
        """Whether every local step has a minibatch of its own."""

    def flat(self, silos: tuple[str, ...], places: Ints, of: Ints) -> FlatRows:
        """The rows of these clients; `of`: the index of each client's silo."""


class Described(Protocol):
    """A value at clients: work `f` on other values, or (`f` None) an argument."""

    @property
    def f(self) -> Callable[..., Any] | None:
        """The function that is computed; None for an argument."""

    @property
    def values(self) -> Sequence[Described]:
        """The values that `f` is applied to."""

    @property
    def minibatch_rows(self) -> Minibatch | None:
        """The minibatch that it has rows of, if any."""

    @property
    def is_shared(self) -> bool:
        """Whether it has rows of a minibatch, or is shared by all of a silo's clients. Noise, for
        example, is neither."""

    @property
    def trains_otherwise(self) -> bool:
        """Whether it is parts of the task with a block that trains otherwise than it predicts."""

    def mixes(self, silos: tuple[str, ...]) -> bool:
        """Whether clients of these silos can be computed together."""

    def argument(self, silos: tuple[str, ...], flat: FlatRows, named: bool) -> Argument:
        """The argument for the clients of these silos. `named`: with parts of the task that know
        their silo's name."""


class MeanRequest(NamedTuple):
    """A request for a mean over clients. `of`: the index of the silo of the client at each of
    `places`; `times`: how many clients each place of the axis stands for (None: one); `weights`: of
    clients (None: 1)."""

    silos: tuple[str, ...]
    places: Ints
    of: Ints
    times: Ints | None
    value: Described
    weights: Described | None


class Sums(NamedTuple):
    """Sums over clients. `total`: a tree with a first axis for silos; `form`: the signature of a
    client's value; `parts`: sums of weights by silo; `weights`: each client's."""

    total: Any
    form: Any
    parts: Tensor
    weights: Floats
