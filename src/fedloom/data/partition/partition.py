"""The [partition] section of a run file: columns go to silos, rows to clients.

`Partition` draws a `Cut`, which can be saved; `place` applies the cut to the data:

    data = load("digits")
    cut = Partition(silos=["left", "right"], clients=[3, 5], seed=1).cut(data)
    cut.save("digits.cut.json")
    federated = place(data, Cut.load("digits.cut.json"))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, count, islice, product
from string import ascii_lowercase
from typing import Annotated, Any, TypeVar

import numpy as np

from ...core.checked import Checked, checked
from ...core.errors import DataError, SettingError, nearest
from ...core.registry import horizontal_partitioners, vertical_partitioners
from ...core.rng import Ints
from ...core.settings import Positive, at_least
from ..dataset import Dataset
from ..federated import Federated
from . import horizontal, vertical  # noqa: F401  (registers the partitioners)
from .partitioners import Named, check_partitioner, name_of, partition_columns, partition_rows
from .saved_cut import Cut, place, sum_of_ids
from .vertical import Selections
from .views import class_view_cut

__all__ = ["Cut", "Partition", "place"]

CLIENTS = 3
ROWS = {"clients", "horizontal", "sizes", "key", "mirrored", "labels_at"}  # settings about rows

T = TypeVar("T")


@dataclass(frozen=True)
class Partition(Checked):
    """How to partition a data set: the [partition] section of a run file.

    Default of `silos`: those of `columns`; one for each cell of `grid`; one for each block of a set
    with several blocks (with their names in "views"); else two. Default of `vertical`: "columns" or
    "grid" where these are given; "views" for several blocks; "halves" for images; else
    "contiguous". "sizes" and "key" decide the number of clients. With `views` there is one silo,
    and its clients hold the views that would otherwise be the parts of silos."""

    silos: Annotated[
        int | list[str] | None,
        at_least(1),
        "their names, or a number of them: a, b, c, ...; none: by the data",
    ] = None
    vertical: Annotated[
        str | dict[str, Any] | None,
        "how columns, pixels or views are dealt out: a name below, or a table with it and the "
        "settings it takes; none: by the data",
    ] = None
    columns: Annotated[
        dict[str, list[str | int]] | None, "silo -> its columns (or, in `views`, its blocks)"
    ] = None
    grid: Annotated[list[int] | None, at_least(1), "[rows, columns] of image patches"] = None
    clients: Annotated[
        int | list[int] | dict[str, int],
        at_least(1),
        "in every silo, silo by silo, or by the silo's name",
    ] = CLIENTS
    horizontal: Annotated[
        str | dict[str, Any],
        "how rows are dealt out: a name below, or a table with it and the settings it takes",
    ] = "random"
    sizes: Annotated[
        list[float] | dict[str, list[float]] | None,
        at_least(0),
        "proportions of rows, for all silos or by silo",
    ] = None
    alpha: Annotated[Positive, "of `dirichlet`: the smaller, the more unequal"] = 0.5
    key: Annotated[str | None, "of `key`: one of the set's keys"] = None
    mirrored: Annotated[bool, "the same rows at client k of every silo"] = False
    labels_at: Annotated[str | list[str] | None, "the silos that hold labels; none: all"] = None
    views: Annotated[
        dict[str, list[int]] | None,
        "client -> the views that it holds, by number: one silo, whose clients see things from "
        "different sides (HyFEM)",
    ] = None
    classes: Annotated[
        dict[str, list[int]] | None, "with `views`: client -> its classes, by number; none: all"
    ] = None
    overlap: Annotated[
        bool, "with `views`: a class of several clients is whole at each, or dealt out to them"
    ] = True
    seed: Annotated[int, "of what is drawn here"] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_partitioner(horizontal_partitioners, self.horizontal)
        if self.vertical is not None:
            check_partitioner(vertical_partitioners, self.vertical)

    @checked()
    def place(self, data: Dataset) -> Federated:
        """Draw the partition and apply it."""
        if self.views is None:
            return place(data, self.cut(data))
        parts = self._cut_columns(data)
        blocks = {
            name: vertical.features(data, name, selection) for name, selection in parts.items()
        }
        classes = self.classes or {name: list(range(data.outputs)) for name in self.views}
        data = replace(data, blocks=blocks, columns={})
        return class_view_cut(data, classes, self.views, overlap=self.overlap)

    @checked()
    def cut(self, data: Dataset) -> Cut:
        """Draw the partition, without applying it."""
        if self.views is not None:
            raise SettingError(
                "views: a cut cannot describe copies of rows; use place(), not cut()"
            )
        parts = self._cut_columns(data)
        silos = tuple(parts)
        clients, owner = self._rows(data, silos)
        return Cut(data.name, sum_of_ids(data), parts, clients, owner, self._labelled(silos))

    def _cut_columns(self, data: Dataset) -> Selections:
        """The columns of each silo. Invalid settings are refused."""
        if data.test.all():
            raise DataError(f"data set {data.name} has no training rows")
        how = self._vertical(data)
        self._check(name_of(how))
        silos = self._silos(data, name_of(how))
        given = {"seed": self.seed, "grid": self.grid, "lists": self._lists(silos)}
        parts = partition_columns(how, data, silos, **given)
        first = data.rows(np.arange(1))
        for silo in silos:
            vertical.features(first, silo, parts[silo])  # raises if its blocks cannot be joined
        return parts

    def _labelled(self, silos: tuple[str, ...]) -> tuple[str, ...]:
        """The silos that have labels, in order."""
        given = [self.labels_at] if isinstance(self.labels_at, str) else self.labels_at
        if given is None:
            return silos
        for silo in given:
            _known("labels_at", silo, silos)
        if not given:
            raise SettingError("labels_at: at least one silo must hold labels")
        return tuple(silo for silo in silos if silo in given)

    def _vertical(self, data: Dataset) -> Named:
        if self.vertical is not None:
            return self.vertical
        if self.columns is not None:
            return "columns"
        if self.grid is not None:
            return "grid"
        if len(data.blocks) > 1:
            return "views"
        return "halves" if all(map(vertical.images, data.blocks.values())) else "contiguous"

    def _check(self, how: str) -> None:
        """Refuse settings that belong to another choice than the one made."""
        changed = {f.name for f in fields(self) if getattr(self, f.name) != f.default}
        if self.views is None and (alone := sorted(changed & {"classes", "overlap"})):
            raise SettingError(f"{alone[0]} is for clients with different views: it needs `views`")
        if self.views is not None and (odd := sorted(changed & ROWS)):
            raise SettingError(
                f"{odd[0]}: with `views`, rows go by class to the clients named there; leave it out"
            )
        if self.columns is not None and how not in ("columns", "views"):
            raise SettingError(f"columns are for vertical = 'columns' or 'views', not {how!r}")
        if self.grid is not None and how != "grid":
            raise SettingError(f"grid is for vertical = 'grid', not {how!r}")
        for setting in ("sizes", "key"):
            given, rows = getattr(self, setting) is not None, name_of(self.horizontal)
            if given and rows != setting:
                raise SettingError(f"{setting} is for horizontal = {setting!r}, not {rows!r}")
            if not given and rows == setting:
                raise SettingError(f"horizontal = {setting!r} needs {setting}")
        if how == "columns" and self.columns is None:
            raise SettingError("vertical = 'columns' needs columns: silo -> column names")
        if how == "grid" and (self.grid is None or len(self.grid) != 2 or min(self.grid) < 1):
            raise SettingError(f"vertical = 'grid' needs grid = [rows, columns], not {self.grid}")

    def _silos(self, data: Dataset, how: str) -> tuple[str, ...]:
        given = self.silos
        cells = None if self.grid is None else self.grid[0] * self.grid[1]
        if isinstance(given, list):
            silos = tuple(given)
        elif self.columns is not None:
            silos = tuple(self.columns)
            if given is not None and given != len(silos):
                raise SettingError(f"silos: {given}, but columns are given for {len(silos)}")
        elif given is None and how == "views":
            silos = tuple(data.blocks)
        else:
            silos = _letters(given if given is not None else cells or max(2, len(data.blocks)))
        if not silos or len(set(silos)) != len(silos):
            raise SettingError(f"silos: at least one, and no name twice, not {given}")
        if cells is not None and cells != len(silos):
            raise SettingError(f"grid: {self.grid} has {cells} cells, for {len(silos)} silos")
        return silos

    def _lists(self, silos: tuple[str, ...]) -> dict[str, list[str | int]] | None:
        """The columns listed for each silo, if any are."""
        if self.columns is None:
            return None
        lists = _by_silo("columns", self.columns, silos)
        for silo, wanted in lists.items():
            if not wanted:
                raise SettingError(f"columns: silo {silo!r} gets none")
        return lists

    def _rows(
        self, data: Dataset, silos: tuple[str, ...]
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, Ints]]:
        """{silo: names of its clients}, {silo: owner of every row}."""
        counts = self._counts(silos)
        shares: dict[str, list[float]] = {silo: [1.0] * counts[silo] for silo in silos}
        if self.sizes is not None:
            by_silo = (
                dict.fromkeys(silos, self.sizes) if isinstance(self.sizes, list) else self.sizes
            )
            shares = _by_silo("sizes", by_silo, silos)
            self._check_clients({silo: len(shares[silo]) for silo in silos}, counts)
        if self.mirrored and any(shares[silo] != shares[silos[0]] for silo in silos):
            raise SettingError(
                "mirrored: all silos must have as many clients, of the same sizes; clients are "
                + ", ".join(f"{silo} {len(shares[silo])}" for silo in silos)
            )
        clients: dict[str, tuple[str, ...]] = {}
        owner: dict[str, Ints] = {}
        given = {"seed": self.seed, "alpha": self.alpha, "key": self.key}
        for silo in silos:
            placement, own = "" if self.mirrored else silo, shares[silo]
            clients[silo], owner[silo] = partition_rows(
                self.horizontal, data, len(own), placement, shares=own, **given
            )
        if self.sizes is None:
            self._check_clients({silo: len(names) for silo, names in clients.items()}, counts)
        return clients, owner

    def _counts(self, silos: tuple[str, ...]) -> dict[str, int]:
        given = self.clients
        if isinstance(given, list):
            if len(given) != len(silos):
                raise SettingError(f"clients: {len(given)} numbers for {len(silos)} silos")
            given = dict(zip(silos, given, strict=True))
        by_silo = dict.fromkeys(silos, given) if isinstance(given, int) else given
        return _by_silo("clients", by_silo, silos)

    def _check_clients(self, made: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """Where `clients` is set although the rule decides it, both must agree."""
        how = name_of(self.horizontal)
        if self.clients != CLIENTS and made != counts:
            raise SettingError(f"clients: {self.clients}, but horizontal = {how!r} makes {made}")


def _letters(number: int) -> tuple[str, ...]:
    """a, b, ..., z, aa, ab, ..."""
    words = chain.from_iterable(product(ascii_lowercase, repeat=length) for length in count(1))
    return tuple("".join(word) for word in islice(words, max(0, number)))


def _known(what: str, word: str, known: Iterable[str]) -> None:
    if word not in (known := list(known)):
        raise SettingError(f"{what}: {word!r}{nearest(str(word), known)}")


def _by_silo(what: str, given: Mapping[str, T], silos: Sequence[str]) -> dict[str, T]:
    """A setting for each silo, in the silos' order."""
    for silo in given:
        _known(what, silo, silos)
    for silo in silos:
        if silo not in given:
            raise SettingError(f"{what}: nothing for silo {silo!r}")
    return {silo: given[silo] for silo in silos}
