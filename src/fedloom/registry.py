"""Names for what users choose by name; other packages add to them through entry points.

A package that wants its algorithm listed declares, in its own metadata,

    [project.entry-points."fedloom.algorithms"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, TypeVar

from .errors import SettingError, nearest

T = TypeVar("T")


class Registry:
    """name -> class or factory."""

    def __init__(self, what: str, plural: str):
        self.what, self.plural = what, plural
        self._known: dict[str, Any] = {}
        self._scanned = False

    def register(self, name: str) -> Callable[[T], T]:
        def add(thing: T) -> T:
            if self._known.setdefault(name, thing) is not thing:
                raise SettingError(f"the {self.what} {name!r} is registered already")
            return thing

        return add

    def _scan(self) -> None:
        if not self._scanned:
            self._scanned = True
            for point in entry_points(group=f"fedloom.{self.plural}"):
                self.register(point.name)(point.load())

    def __getitem__(self, name: str) -> Any:
        self._scan()
        if name not in self._known:
            raise SettingError(f"unknown {self.what} {name!r}{nearest(name, self._known)}")
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(sorted(self._known))


algorithms = Registry("algorithm", "algorithms")
models = Registry("model", "models")
losses = Registry("loss", "losses")
datasets = Registry("data set", "datasets")
