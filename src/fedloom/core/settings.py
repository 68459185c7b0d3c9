"""Types and limits of settings, taken from the code: the fields of a dataclass or the parameters of
a function, with `Annotated[type, limit, "what it is"]`.

Run files and party files (`config/`) are checked by these, and so are constructors and the
functions that users call (`checked.py`). So the same mistake gives the same message everywhere.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from .errors import SettingError, nearest

REQUIRED: Any = inspect.Parameter.empty
LONGEST = 60  # characters of a text that are shown
KeyPath = tuple[str, ...]  # of a setting: section, table, key


class BadKey(SettingError):
    """A setting with an invalid value, or an unknown one; `path` says which."""

    def __init__(self, path: KeyPath, problem: str):
        super().__init__(problem)
        self.path, self.problem = path, problem


@dataclass(frozen=True)
class Limit:
    """The range of a setting, or of the numbers in its list or table."""

    words: str
    admits: Callable[[Any], bool]


def at_least(low: float) -> Limit:
    """Numbers from this one on."""
    return Limit(f"at least {low:g}", lambda value: value >= low)


def above(low: float) -> Limit:
    """Numbers above this one."""
    return Limit(f"above {low:g}", lambda value: value > low)


def between(low: float, high: float) -> Limit:
    """Numbers from `low` to `high`, both included."""
    return Limit(f"between {low:g} and {high:g}", lambda value: low <= value <= high)


def inside(low: float, high: float) -> Limit:
    """Numbers between `low` and `high`, both excluded."""
    return Limit(f"above {low:g} and below {high:g}", lambda value: low < value < high)


Count = Annotated[int, at_least(1)]
"""A whole number, at least 1."""
Positive = Annotated[float, above(0)]
"""A number above 0."""
NotNegative = Annotated[float, at_least(0)]
"""A number, at least 0."""
Share = Annotated[float, between(0, 1)]
"""A number between 0 and 1."""


@dataclass(frozen=True)
class Field:
    """One setting. `default`: REQUIRED where there is none."""

    name: str
    hint: Any
    default: Any = REQUIRED
    about: str = ""
    limit: Limit | None = None


def fields_of(thing: Callable[..., Any], without: Collection[str] = ()) -> dict[str, Field]:
    """The settings of a dataclass, another class or a function, by name, except those in
    `without`."""
    plain = isinstance(thing, type) and not dataclasses.is_dataclass(thing)
    hints = get_type_hints(
        vars(thing).get("__init__", thing) if plain else thing, include_extras=True
    )
    if dataclasses.is_dataclass(thing):
        defaults = {f.name: _default(f) for f in dataclasses.fields(thing) if f.init}
    else:
        parameters = inspect.signature(thing).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
    return {
        name: _field(name, hints.get(name, Any), default)
        for name, default in defaults.items()
        if name not in without
    }


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default is not dataclasses.MISSING:
        return f.default
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else REQUIRED


def _field(name: str, hint: Any, default: Any) -> Field:
    if get_origin(hint) is not Annotated:
        return Field(name, hint, default)
    hint, *notes = get_args(hint)
    about = " ".join(note for note in notes if isinstance(note, str))
    limits = [note for note in notes if isinstance(note, Limit)]
    return Field(name, hint, default, about, limits[0] if limits else None)


class Reader:
    """Checks and converts values by type hints; raises BadKey. These values come from Python: a
    list is accepted for a tuple, nothing else is converted."""

    def read(self, hint: Any, value: Any, path: KeyPath, limit: Limit | None = None) -> Any:
        """`value`, converted to the hint's type."""
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            inner = _field("", hint, None)
            return self.read(inner.hint, value, path, inner.limit or limit)
        if origin in (Union, types.UnionType):
            return self._union(hint, value, path, limit)
        if origin is Literal:
            return self._choice(args, value, path)
        if _is(origin, Mapping):
            if not isinstance(value, Mapping):
                self.refuse(hint, value, path)
            return {
                self.read(args[0], key, path): self.read(args[1], inner, (*path, str(key)), limit)
                for key, inner in value.items()
            }
        if origin is tuple or _is(origin, Sequence):
            return self._list(hint, value, path, limit)
        return self.single(hint, value, path, limit)

    def single(self, hint: Any, value: Any, path: KeyPath, limit: Limit | None) -> Any:
        """A value that is no list and no table."""
        if hint is int:
            if not isinstance(value, Integral) or isinstance(value, bool):
                self.refuse(hint, value, path)
        elif hint is float:
            if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
                self.refuse(hint, value, path)
        elif not self.fits(hint, value):
            self.refuse(hint, value, path)
        if limit is not None and isinstance(value, Real) and not limit.admits(value):
            raise BadKey(path, f"must be {limit.words}, not {shown(value)}")
        return value

    def fits(self, hint: Any, value: Any) -> bool:
        """Whether the value is of the hint's class; not for numbers."""
        kind = get_origin(hint) or hint
        if kind is Callable:
            return callable(value)
        if kind is Any or not isinstance(kind, type):
            return True  # a type variable, say
        return isinstance(value, kind) and not isinstance(value, type)

    def refuse(self, hint: Any, value: Any, path: KeyPath) -> NoReturn:
        raise BadKey(path, f"{self.described(hint)} is expected, not {shown(value)}")

    def _union(self, hint: Any, value: Any, path: KeyPath, limit: Limit | None) -> Any:
        if value is None and type(None) in get_args(hint):
            return None
        problems: list[tuple[Any, BadKey]] = []
        for arg in get_args(hint):
            if arg is not type(None):
                try:
                    return self.read(arg, value, path, limit)
                except BadKey as problem:
                    problems.append((arg, problem))
        deepest = max((problem for _, problem in problems), key=lambda p: len(p.path))
        if len(deepest.path) > len(path) or len(problems) == 1:
            raise deepest
        for arg, refusal in problems:
            if self.is_meant(arg, value):
                raise refusal
        self.refuse(hint, value, path)

    def is_meant(self, hint: Any, value: Any) -> bool:
        """Whether an invalid value was probably meant for this member of a union."""
        if isinstance(value, str):
            return get_origin(hint) is Literal
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        return number and (hint is float or (hint is int and isinstance(value, Integral)))

    def _choice(self, choices: tuple[Any, ...], value: Any, path: KeyPath) -> Any:
        if type(value) in {type(choice) for choice in choices} and value in choices:
            return value
        hint = nearest(str(value), choices)
        raise BadKey(path, f"{shown(value)} is not one of the choices{hint}")

    def _list(self, hint: Any, value: Any, path: KeyPath, limit: Limit | None) -> Any:
        args, is_tuple = get_args(hint), get_origin(hint) is tuple
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            self.refuse(hint, value, path)
        if is_tuple and args[-1] is not Ellipsis:
            if len(value) != len(args):
                raise BadKey(path, f"{len(args)} values are expected, not {len(value)}")
            return tuple(self.read(a, v, path, limit) for a, v in zip(args, value, strict=True))
        items = [self.read(args[0], v, path, limit) for v in value]
        return tuple(items) if is_tuple else items

    def described(self, hint: Any) -> str:
        """A hint in words."""
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self.described(args[0])
        if origin in (Union, types.UnionType):
            return " or ".join(self.described(arg) for arg in args if arg is not type(None))
        if origin is Literal:
            return ", ".join(f'"{arg}"' if isinstance(arg, str) else str(arg) for arg in args)
        if _is(origin, Mapping):
            return "a table"
        if origin is tuple or _is(origin, Sequence):
            inner = self.described(args[0])
            number = inner in (WORDS[int], WORDS[float])
            return f"a list of {inner[2:]}s" if number else f"a list of {inner}"
        return self.named(hint)

    def named(self, hint: Any) -> str:
        """A class in words, or its name."""
        if hint in WORDS:
            return WORDS[hint]
        kind = get_origin(hint) or hint
        if kind is Callable:
            return "a function"
        return with_article(kind.__name__) if isinstance(kind, type) else "a value"


WORDS: dict[Any, str] = {  # other modules add their classes
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def with_article(name: str) -> str:
    return f"an {name}" if name[:1] in tuple("AEIOUaeiou") else f"a {name}"


def shown(value: Any) -> str:
    """A value in words, for an error; never its content, which may be private."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, Real):
        return str(value)
    if isinstance(value, str):
        short = value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
        return f'"{short}"'
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, type):
        return f"the class {value.__name__}: {value.__name__}(...) makes one"
    if inspect.isroutine(value):
        return "a function"
    return with_article(type(value).__name__)


def _is(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)
