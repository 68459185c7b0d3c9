"""Registries of what users choose by name. Other packages add to them through entry points.

A package that wants its algorithm listed declares in its metadata:

    [project.entry-points."fedloom.algorithms"]
    mine = "my_package.mine:Mine"

and likewise for the other registries below. An entry point may name a module, too, which registers
its classes when it is imported.
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
    """A map from names to classes or factories. `subclass_of`, `instance_of`: the dotted name of
    the class that all of them must be made of. Without, anything that can be called is accepted.

    Other packages are loaded when a name is not known here. A package that cannot be loaded is
    listed in `broken`, and does not affect the others. `home`: the module that registers FedLoom's
    own, where nothing else is sure to import it. `given`: parameters that FedLoom fills; the others
    are settings of a run file or party file.
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
        self._unloaded: list[EntryPoint] | None = None
        self._broken: dict[str, str] = {}
        Registry._all.append(self)

    def register(self, name: str) -> Callable[[T], T]:
        def add(thing: T) -> T:
            if (requirement := self._requirement(thing)) is not None:
                raise SettingError(f"the {self.what} {name!r} must be {requirement}, not {thing!r}")
            if self._known.setdefault(name, thing) is not thing:
                raise SettingError(f"the {self.what} {name!r} is registered already")
            return thing

        return add

    def __getitem__(self, name: str) -> Any:
        if isinstance(name, str) and name not in self._known:
            self._load_entry_points()
        if not isinstance(name, str) or name not in self._known:
            raise SettingError(self.unknown(name))
        return self._known[name]

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Registrations inside the block are forgotten afterwards: for tests."""
        self._load_entry_points()  # modules that are imported only once must not be forgotten
        known = dict(self._known)
        try:
            yield
        finally:
            self._known = known

    def settings(self, name: str) -> dict[str, Field]:
        """The settings that a run file may give to the thing of this name."""
        return fields_of(self[name], self.given)

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        return iter(sorted(self._known))

    @property
    def broken(self) -> dict[str, str]:
        """Things of other packages that cannot be loaded, with the reason."""
        self._load_entry_points()
        return dict(self._broken)

    def unknown(self, name: object) -> str:
        """The error text for an unknown name."""
        text = f"unknown {self.what} {name!r}{nearest(str(name), self)}"
        for which, why in self.broken.items():
            text += f"; {which} cannot be loaded ({why})"
        return text

    def _requirement(self, thing: Any) -> str | None:
        """What the thing would have to be; None if it is that already."""
        if self._subclass_of is not None:
            kind = pkgutil.resolve_name(self._subclass_of)
            fits = isinstance(thing, type) and issubclass(thing, kind)
            return None if fits else f"a subclass of {kind.__name__}"
        if self._instance_of is not None:
            fits = isinstance(thing, pkgutil.resolve_name(self._instance_of))
            return None if fits else "made by its decorator"
        return None if callable(thing) else "a class or a function"

    def _load_entry_points(self) -> None:
        with Registry._lock:
            self._load_home()
            if self._unloaded is None:
                self._unloaded = list(entry_points(group=f"fedloom.{self.plural}"))
            while self._unloaded and not Registry._loading:
                self._load(self._unloaded.pop(0))

    def _load_home(self) -> None:
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
        Registry._loading = True  # a module that looks names up meanwhile is half imported
        try:
            thing = point.load()
            if not isinstance(thing, ModuleType):
                self.register(point.name)(thing)
        except (Exception, SystemExit) as problem:
            for registry, known in before:  # a half imported module registers nothing
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
"""Models by name: functions of settings that return a module factory."""
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
"""Ways to divide columns among silos, by name: functions of a data set and the silos."""
horizontal_partitioners = Registry(
    "horizontal partitioner",
    "horizontal_partitioners",
    given=("data", "clients", "seed", "draw", "placement", "alpha", "key", "shares"),
)
"""Ways to divide rows among a silo's clients, by name: functions of a data set and the clients."""
metrics = Registry("metric", "metrics", instance_of="fedloom.records.metrics:Metric")
"""Metrics by name: functions that `metric` has registered."""
writers = Registry(
    "records writer", "writers", home="fedloom.records.writers", given=("folder", "title", "config")
)
"""Records writers by name: factories of a `Writer`, given a run's folder, title and run file."""
transports = Registry(
    "transport",
    "transports",
    home="fedloom.deployment.connect",
    given=("links", "run", "options"),
)
"""Transports by name: factories of links, given a party's peers, the run and the options of every
transport."""
