"""Registration of data sets, the search for their files, and checksums.

A data set is one function in `data/datasets/`, registered with instructions to get its files:

    @dataset("mnist", about="...", files={"train-images-idx3-ubyte.gz": "<sha256>"}, get="...")
    def mnist(files: Files, flat: bool = False) -> Dataset: ...

Files are searched in the folder that the run file names, or in FEDLOOM_DATA: in a folder of the
set's name, then directly.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.checked import check_settings, checked
from ..core.errors import DataError, InputError, SettingError, nearest, reason
from ..core.registry import datasets
from ..core.settings import fields_of
from .dataset import Dataset

ENVIRONMENT = "FEDLOOM_DATA"

Loader = Callable[..., Dataset]


@dataclass(frozen=True)
class Files:
    """The files of one data set: their paths by name."""

    name: str
    paths: Mapping[str, Path]

    def __getitem__(self, file: str) -> Path:
        return self.paths[file]


@dataclass(frozen=True)
class DatasetLoader:
    """A registered data set; calling it loads it. `files` maps names to the SHA-256 of their
    unpacked content (None: any); a file called .gz may also be there unpacked. `get`: how to get
    the files. `folder`: the folder of the set."""

    name: str
    about: str
    load: Loader
    files: Mapping[str, str | None]
    get: str
    folder: str

    def __call__(self, *files: Files, **options: Any) -> Dataset:
        return self.load(*files, **options)

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The loader's own settings."""
        given = inspect.signature(self.load).parameters
        return {name: option for name, option in given.items() if name != "files"}

    def places(self, folder: str | os.PathLike[str] | None = None) -> list[Path]:
        """The folders to search, in order."""
        root = folder if folder is not None else os.environ.get(ENVIRONMENT)
        return [] if root is None else [Path(root) / self.folder, Path(root)]

    def find(self, folder: str | os.PathLike[str] | None = None) -> Files:
        """All files, from one folder; else an error that says which are missing, and where."""
        places = self.places(folder)
        for place in places:
            paths = {file: _packed_or_not(place / file) for file in self.files}
            if all(path.is_file() for path in paths.values()):
                return Files(self.name, paths)
        searched = " and ".join(map(str, places)) or f"nowhere: {ENVIRONMENT} is not set"
        missing = [
            file
            for file in self.files
            if not any(_packed_or_not(place / file).is_file() for place in places)
        ]
        raise DataError(
            f"data set {self.name}: {', '.join(missing or self.files)} not found (looked in "
            f"{searched}). {self.get}"
        )

    def verify(self, files: Files) -> dict[str, str]:
        """Checksums of the files; a DataError names a file whose checksum is wrong."""
        sums = {file: checksum(path) for file, path in files.paths.items()}
        for file, wanted in self.files.items():
            if wanted is not None and sums[file] != wanted:
                raise DataError(
                    f"data set {self.name}: {files[file]} is damaged or another version (SHA-256 "
                    f"{sums[file][:12]}..., expected {wanted[:12]}...). {self.get}"
                )
        return sums


def dataset(
    name: str,
    *,
    about: str,
    files: Mapping[str, str | None] | None = None,
    get: str = "",
    folder: str | None = None,
) -> Callable[[Loader], DatasetLoader]:
    """Register a loader under a name."""

    def add(load: Loader) -> DatasetLoader:
        loader = DatasetLoader(name, about, load, files or {}, get, folder or name)
        return datasets.register(name)(loader)

    return add


@checked()
def load(
    name: str, folder: str | os.PathLike[str] | None = None, verify: bool = True, **options: Any
) -> Dataset:
    """Load a registered data set by name. `verify`: check the files' checksums."""
    loader: DatasetLoader = datasets[name]
    for option in sorted(set(options) - set(loader.options)):
        hint = nearest(option, loader.options)
        raise SettingError(f"data set {name} has no option {option!r}{hint}")
    check_settings(f"data set {name}", fields_of(loader.load, without=("files",)), options)
    if not loader.files:
        return loader.load(**options)
    files = loader.find(folder)
    sums = loader.verify(files) if verify else {}
    try:
        data = loader.load(files, **options)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError) as problem:
        raise DataError(f"data set {name}: its files cannot be read ({reason(problem)})") from None
    return replace(data, sources=sums)


def checksum(path: Path) -> str:
    """SHA-256 of a file's content; of a gzipped file, of its unpacked content, since packing it
    again gives other bytes."""
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    try:
        with gzip.open(path) as packed:
            while part := packed.read(1 << 20):
                digest.update(part)
    except (OSError, EOFError, zlib.error):
        return "unreadable"
    return digest.hexdigest()


def _packed_or_not(path: Path) -> Path:
    """The file, or the unpacked one without .gz."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return path if path.is_file() or not plain.is_file() else plain
