"""Helpers of the loaders: reading files, checking options, scaling, splitting by group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.errors import DataError, SettingError, nearest, reason
from ...core.rng import Streams

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

OWN_BUILD = "A file made anew differs in its checksum: load it with verify = false."


def choice(option: str, value: object, known: Any) -> None:
    """Refuse an option that is not one of a Literal's values."""
    if value not in get_args(known):
        raise SettingError(f"{option}: {value!r}{nearest(str(value), map(str, get_args(known)))}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Any exception inside becomes a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as problem:  # parsers of damaged files raise nearly anything
        raise DataError(f"{path} cannot be read ({reason(problem)})") from None


def arrays(path: Path, *names: str) -> list[Array]:
    """Arrays of an npz file."""
    with reading(path), np.load(path) as archive:
        lacking = [name for name in names if name not in archive]
        if lacking:
            raise DataError(f"{path} has no array {lacking[0]!r}")
        return [archive[name] for name in names]


def table(path: Path) -> dict[str, Array]:
    """Columns of a parquet or CSV file (gzipped or not); an empty cell of numbers is NaN."""
    with reading(path):
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                content = file.read()
        else:
            from pyarrow import csv

            content = csv.read_csv(path)
        columns = {name: content[name].to_numpy() for name in content.column_names}
    return {name: c.astype(str) if c.dtype == object else c for name, c in columns.items()}


def matrix(columns: Mapping[str, Array], names: Sequence[str]) -> Array:
    """Some columns of a table side by side."""
    return np.stack([columns[name].astype(np.float64) for name in names], axis=1)


def moments(x: Array, train: Mask) -> tuple[Array, Array]:
    """Mean and standard deviation of each column (the last axis) over the training rows."""
    seen = x[train].astype(np.float64).reshape(-1, x.shape[-1])
    spread = seen.std(axis=0)
    # No threshold on the deviation: some real columns are of order 1e-20, and rounding leaves a
    # constant column of ordinary size with a deviation above zero.
    spread[seen.min(axis=0) == seen.max(axis=0)] = 1
    return seen.mean(axis=0), spread


def split(size: int, share: float, name: str) -> Mask:
    """Which rows are for testing: a fixed share, which depends on the set's name only."""
    test = np.zeros(size, dtype=bool)
    test[Streams(0).common("test rows", name).permutation(size)[: round(share * size)]] = True
    return test


def standardise(x: Array, train: Mask) -> Array:
    """Columns with mean 0 and standard deviation 1 over the training rows; constant ones become
    0."""
    mean, spread = moments(x, train)
    scaled: Array = ((x - mean) / spread).astype(np.float32)
    return scaled


def standard_target(name: str, y: Array, train: Mask) -> tuple[Tensor, str]:
    """A standardised target, and a note that says how to undo it."""
    mean, spread = moments(y[:, None], train)
    target = block(name, standardise(y[:, None], train)[:, 0])
    return target, f"target = (value - {mean[0]:.6g}) / {spread[0]:.6g}"


def block(name: str, x: Array) -> Tensor:
    """Features (or targets) as float32, refused unless finite."""
    if not np.isfinite(x).all():
        raise DataError(f"data set {name}: NaN or infinity in its files")
    return torch.from_numpy(np.array(x, dtype=np.float32, order="C"))


def labels(name: str, y: Array, count: int) -> Tensor:
    """Class numbers as int64, refused unless whole and in 0 .. count-1."""
    if not np.isin(y, np.arange(count)).all():
        raise DataError(f"data set {name}: labels outside 0..{count - 1}")
    return torch.from_numpy(y.astype(np.int64))


def pixels(x: Array) -> Tensor:
    """Bytes as float32 in 0..1."""
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.float32).div_(255)


def views(x: Array) -> dict[str, Tensor]:
    """[rows, views, height, width] bytes as one block of grey images for each view."""
    return {f"view{k:02}": pixels(x[:, k, None]) for k in range(x.shape[1])}


def split_groups(groups: Array, share: float, name: str) -> Mask:
    """A split that keeps each group on one side; `share` is a share of groups."""
    known, where = np.unique(groups, return_inverse=True)
    return split(len(known), share, name)[where]
