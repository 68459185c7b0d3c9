"""Partitioners by their names in [partition]: which function that is, its settings, its arguments.

A partitioner asks for arguments by the names of its parameters (`given` of its registry). Its other
parameters are settings, in a table with its name: `vertical = {name = "mine", width = 3}`.

- Every one can have `data`, `seed` and `draw`, a random generator that follows from the seed.
- A vertical one can have `silos`, their names, and of [partition] `grid` and `columns` (as
  `lists`). It returns for each silo the numbers of its columns, counted over all blocks, or
  {block: selection}.
- A horizontal one can have `clients`, how many the silo has, and of [partition] `alpha`, `key` and
  `sizes` (as `shares`). `placement` is the silo, or empty where all are partitioned alike. It
  returns for each row the index of its client; if it decides who the clients are, (names, that).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.checked import check_settings
from ...core.errors import SettingError, nearest
from ...core.registry import Registry, horizontal_partitioners, vertical_partitioners
from ...core.rng import Ints, Streams
from ...core.settings import REQUIRED
from ..dataset import Dataset
from .vertical import Region, Selection, Selections, columns, grouped

Named = str | dict[str, Any]  # a name, or a table with it and the settings


def name_of(how: Named) -> str:
    return str(how.get("name", "")) if isinstance(how, Mapping) else how


def settings_of(how: Named) -> dict[str, Any]:
    return {k: v for k, v in how.items() if k != "name"} if isinstance(how, Mapping) else {}


def check_partitioner(registry: Registry, how: Named) -> None:
    """Refuse a partitioner that is not registered, and settings that it does not take."""
    name, settings = name_of(how), settings_of(how)
    fields, where = registry.settings(name), f"{registry.what} {name}"
    for key in settings:
        if key not in fields:
            tail = nearest(key, fields) if fields else "; it takes none"
            raise SettingError(f"{where}: unknown setting {key!r}{tail}")
    check_settings(where, fields, settings)
    for key, field in fields.items():
        if field.default is REQUIRED and key not in settings:
            raise SettingError(f"{where}: the setting {key!r} is missing")


def partition_columns(how: Named, data: Dataset, silos: Sequence[str], **given: Any) -> Selections:
    """The columns of each silo."""
    result = _called(vertical_partitioners, how, (), {"data": data, "silos": silos, **given})
    if not isinstance(result, Mapping) or set(result) != set(silos):
        raise SettingError(f"vertical partitioner {name_of(how)}: columns of each silo are wanted")
    return {silo: _selected(how, data, silo, result[silo]) for silo in silos}


def _selected(how: Named, data: Dataset, silo: str, result: Any) -> dict[str, Selection]:
    where = f"vertical partitioner {name_of(how)}: silo {silo!r}"
    if not isinstance(result, Mapping):
        known, numbers = columns(data), [int(number) for number in result]
        if not all(0 <= number < len(known) for number in numbers):
            last = len(known) - 1
            raise SettingError(f"{where} gets a column that is not one of the set's, 0 to {last}")
        result = grouped(known, numbers)
    if not result:
        raise SettingError(f"{where} gets no columns")
    return {
        block: part if part is None or isinstance(part, Region) else tuple(int(k) for k in part)
        for block, part in result.items()
    }


def partition_rows(
    how: Named, data: Dataset, clients: int, placement: str, **given: Any
) -> tuple[tuple[str, ...], Ints]:
    """The names of a silo's clients, and the owner of every row."""
    offered = {"data": data, "clients": clients, "placement": placement, **given}
    result = _called(horizontal_partitioners, how, (placement,), offered)
    names = tuple(map(str, range(clients)))
    if isinstance(result, tuple):
        names, result = tuple(map(str, result[0])), result[1]
    owner, where = np.asarray(result), f"horizontal partitioner {name_of(how)}"
    if owner.shape != (data.size,) or owner.dtype.kind not in "iu":
        raise SettingError(f"{where}: the index of its client is wanted for each row")
    if owner.size and not 0 <= owner.min() <= owner.max() < len(names):
        raise SettingError(
            f"{where}: it gives rows to clients {owner.min()} to {owner.max()}; there are "
            f"{len(names)}, counted from 0"
        )
    return names, owner.astype(np.int64)


def _called(
    registry: Registry, how: Named, stream: tuple[str, ...], given: Mapping[str, Any]
) -> Any:
    name = name_of(how)
    partitioner, offered = registry[name], dict(given)
    takes = inspect.signature(partitioner).parameters
    if "draw" in takes:
        seed = Streams(given["seed"]).common(registry.what, name, *stream).seed()
        offered["draw"] = np.random.default_rng(seed)
    return partitioner(**{key: v for key, v in offered.items() if key in takes}, **settings_of(how))
