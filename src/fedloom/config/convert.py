"""Conversion between TOML values and the values of settings, by type hints.

TOML has no None: the word "none" stands for it where a key may be None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from ..algorithms.shared.hub_steps import HUB_STEPS, HubStep
from ..algorithms.shared.optimizers import OPTIMIZERS, Optimizer
from ..algorithms.shared.step_sizes import RULES, StepSize
from ..core.errors import SettingError, nearest
from ..core.settings import REQUIRED, BadKey, Field, KeyPath, Limit, Reader, fields_of


class Choice(NamedTuple):
    """One of several dataclasses, written as a table: its key `key` says which. `usual`: without
    that key."""

    key: str
    kinds: Mapping[str, type[Any]]
    what: str
    usual: str | None = None


CHOICES: dict[Any, Choice] = {
    StepSize: Choice("rule", RULES, "a table with a rule"),
    Optimizer: Choice("name", OPTIMIZERS, "a table with an optimiser", "sgd"),
    HubStep: Choice("name", HUB_STEPS, "a table with a hub's step", "relaxed"),
}


def table(fields: Mapping[str, Field], values: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    """A table with these fields and their defaults. Unknown and missing keys are refused."""
    for key in values:
        if key not in fields:
            raise BadKey((*path, key), f"unknown key {key!r}{nearest(key, fields)}")
    complete = {}
    for name, field in fields.items():
        if name in values:
            complete[name] = READER.read(field.hint, values[name], (*path, name), field.limit)
        elif field.default is REQUIRED:
            raise BadKey(path, f"the key {name!r} is missing")
        else:
            complete[name] = field.default
    return complete


def construct(kind: Any, settings: Mapping[str, Any], path: KeyPath) -> Any:
    """A dataclass with these settings. Its error is raised again with the path of the table."""
    try:
        return kind(**settings)
    except BadKey:
        raise
    except SettingError as problem:
        own = f"{kind.__name__}: "
        raise BadKey(path, str(problem).removeprefix(own).removeprefix(own.lower())) from None


class FromTables(Reader):
    """Reads TOML values: tables for dataclasses and step-size rules, whole numbers where floats are
    expected, "none" for None."""

    def single(self, hint: Any, value: Any, path: KeyPath, limit: Limit | None) -> Any:
        if hint in CHOICES:
            return self._one_of(hint, value, path)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                self.refuse(hint, value, path)
            return construct(hint, table(fields_of(hint), value, path), path)
        number = super().single(hint, value, path, limit)
        return float(number) if hint is float else number

    def is_meant(self, hint: Any, value: Any) -> bool:
        return (isinstance(value, Mapping) and hint in CHOICES) or super().is_meant(hint, value)

    def named(self, hint: Any) -> str:
        if hint in CHOICES:
            return CHOICES[hint].what
        return "a table" if dataclasses.is_dataclass(hint) else super().named(hint)

    def _union(self, hint: Any, value: Any, path: KeyPath, limit: Limit | None) -> Any:
        if value == "none" and type(None) in get_args(hint):
            return None
        return super()._union(hint, value, path, limit)

    def _one_of(self, hint: Any, value: Any, path: KeyPath) -> Any:
        """A step-size rule, say: {rule = "cosine", lr = 0.1, steps = 1000}."""
        if not isinstance(value, Mapping):
            self.refuse(hint, value, path)
        key, kinds, _, usual = CHOICES[hint]
        name = value.get(key, usual or "")
        if not isinstance(name, str) or name not in kinds:
            raise BadKey((*path, key), f"unknown {key} {name!r}{nearest(str(name), kinds)}")
        settings = {own: v for own, v in value.items() if own != key}
        return self.read(kinds[name], settings, path)


READER = FromTables()
described = READER.described


def plain(value: Any) -> Any:
    """A value as TOML; keys that are None are left out of tables."""
    if isinstance(value, Mapping):
        return {str(key): plain(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    for choice in CHOICES.values():
        for name, kind in choice.kinds.items():
            if type(value) is kind:
                return {choice.key: name, **plain(dataclasses.asdict(value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    return value


def plain_table(fields: Mapping[str, Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """A table as TOML. None is left out where it is the default, and is "none" elsewhere."""
    written = {}
    for name, value in values.items():
        if value is not None:
            written[name] = plain(value)
        elif name in fields and fields[name].default is not None:
            written[name] = "none"
    return written
