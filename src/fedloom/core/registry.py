"""Names for what users choose by name; other packages add to them through entry points.

A package that wants its algorithm listed declares, in its own metadata,

    [project.entry-points."fedloom.algorithms"]
    mine = "my_package.mine:Mine"

and likewise for the other registries below. What it names may register itself when its module is
imported, too; where it names a module, that is all that is wanted.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from .errors import SettingError, nearest
from .extras import extra_of
from .settings import Field, fields_of

T = TypeVar("T")


class Registry:
    """name -> class or factory. `subclass_of`, `instance_of`: where the class is that all of them
    are made of; without, they are anything that can be called.

    Other packages are looked at when a name is asked for that is not known here. One that cannot be
    loaded is kept in `broken`, and takes nothing from the others. `home`: the module that registers
    FedLoom's own, where nothing else is sure to import it. `given`: parameters that FedLoom fills;
    the others are settings of a run file or party file.
    """

    _all: ClassVar[list[Registry]] = []
    _lock: ClassVar[Any] = RLock()
    _loading: ClassVar[bool] = False

    def __init__(
        self,
        what: str,
        plural: str,
        *,
        subclass_of: str | None = None,
        instance_of: str | None = None,
        home: str | None = None,
        given: Collection[str] = (),
    ):
        self.what, self.plural = what, plural
        self._subclass_of, self._instance_of = subclass_of, instance_of
        self._home, self.given = home, tuple(given)
        self._known: dict[str, Any] = {}
        self._waiting: list[EntryPoint] | None = None
        self._broken: dict[str, str] = {}
        Registry._all.append(self)

    def register(self, name: str) -> Callable[[T], T]:
        def add(thing: T) -> T:
            if (wanted := self._wanted(thing)) is not None:
                raise SettingError(f"the {self.what} {name!r} must be {wanted}, not {thing!r}")
            if self._known.setdefault(name, thing) is not thing:
                raise SettingError(f"the {self.what} {name!r} is registered already")
            return thing

        return add

    def __getitem__(self, name: str) -> Any:
        if isinstance(name, str) and name not in self._known:
            self._scan()
        if not isinstance(name, str) or name not in self._known:
            raise SettingError(self.unknown(name))
        return self._known[name]

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """What is registered inside is forgotten afterwards: for tests."""
        self._scan()  # what is imported only once must not be forgotten
        known = dict(self._known)
        try:
            yield
        finally:
            self._known = known

    def settings(self, name: str) -> dict[str, Field]:
        """What a run file may say about one of them."""
        return fields_of(self[name], self.given)

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(sorted(self._known))

    @property
    def broken(self) -> dict[str, str]:
        """What other packages declare and cannot be loaded: {which: why}."""
        self._scan()
        return dict(self._broken)

    def unknown(self, name: object) -> str:
        """What to say of a name that nobody has registered."""
        told = f"unknown {self.what} {name!r}{nearest(str(name), self)}"
        for which, why in self.broken.items():
            told += f"; {which} cannot be loaded ({why})"
        return told

    def _wanted(self, thing: Any) -> str | None:
        """What it would have to be; None where it is."""
        if self._subclass_of is not None:
            kind = pkgutil.resolve_name(self._subclass_of)
            fits = isinstance(thing, type) and issubclass(thing, kind)
            return None if fits else f"a subclass of {kind.__name__}"
        if self._instance_of is not None:
            fits = isinstance(thing, pkgutil.resolve_name(self._instance_of))
            return None if fits else "made by its decorator"
        return None if callable(thing) else "a class or a function"

    def _scan(self) -> None:
        with Registry._lock:
            self._come_home()
            if self._waiting is None:
                self._waiting = list(entry_points(group=f"fedloom.{self.plural}"))
            while self._waiting and not Registry._loading:
                self._load(self._waiting.pop(0))

    def _come_home(self) -> None:
        home, self._home = self._home, None
        if home is not None:
            try:
                import_module(home)
            except ModuleNotFoundError as missing:
                if (extra := extra_of(missing.name or "")) is None:
                    raise
                why = f"{missing.name} is not installed: pip install 'fedloom[{extra}]'"
                self._broken[f"what FedLoom has of {self.plural}"] = why

    def _load(self, point: EntryPoint) -> None:
        before = [(registry, dict(registry._known)) for registry in Registry._all]
        Registry._loading = True  # a module that asks for names meanwhile is imported by half
        try:
            thing = point.load()
            if not isinstance(thing, ModuleType):
                self.register(point.name)(thing)
        except (Exception, SystemExit) as problem:
            for registry, known in before:  # a module that was imported by half has nothing here
                registry._known = known
            package = "a package" if point.dist is None else point.dist.name
            why = f"{type(problem).__name__}: {problem}"
            self._broken[f"{self.what} {point.name!r} of {package}"] = why
        finally:
            Registry._loading = False


algorithms = Registry(
    "algorithm", "algorithms", subclass_of="fedloom.algorithms.contract:Algorithm"
)
"""Algorithms by name: subclasses of `Algorithm`."""
models = Registry("model", "models")
"""Models by name: functions of settings that give what makes a module."""
losses = Registry("loss", "losses")
"""Losses by name: subclasses of `Loss`."""
datasets = Registry("data set", "datasets", instance_of="fedloom.data.catalog:DatasetLoader")
"""Data sets by name: loaders that `dataset` has registered."""
executors = Registry(
    "executor",
    "executors",
    subclass_of="fedloom.engines.execute.executor:Executor",
    home="fedloom.engines.execute.choose",
    given=("options",),
)
"""Executors by name: subclasses of `Executor`."""
vertical_partitioners = Registry(
    "vertical partitioner",
    "vertical_partitioners",
    given=("data", "silos", "seed", "draw", "grid", "lists"),
)
"""How columns are dealt out to silos, by name: functions of a data set and the silos."""
horizontal_partitioners = Registry(
    "horizontal partitioner",
    "horizontal_partitioners",
    given=("data", "clients", "seed", "draw", "placement", "alpha", "key", "shares"),
)
"""How rows are dealt out to a silo's clients, by name: functions of a data set and their number."""
metrics = Registry("metric", "metrics", instance_of="fedloom.records.metrics:Metric")
"""Metrics by name: functions that `metric` has registered."""
writers = Registry(
    "records writer", "writers", home="fedloom.records.writers", given=("folder", "title", "config")
)
"""Records writers by name: what makes a `Writer`, given a run's folder, title and run file."""
transports = Registry(
    "transport",
    "transports",
    home="fedloom.deployment.connect",
    given=("links", "run", "options"),
)
"""Transports by name: what makes a party's links, given whom it is connected with, the run and the
options of every transport."""
