"""Settings are checked where they are given: `Checked` dataclasses, `@checked()` functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from .errors import SettingError
from .settings import REQUIRED, BadKey, Field, Reader, fields_of

P = ParamSpec("P")
R = TypeVar("R")
READER = Reader()
SIMPLE = (int, float, str, list, tuple, dict, type(None))
_cache: dict[Any, dict[str, Field]] = {}  # of a class or a function


class Checked:
    """A dataclass that is checked when it is made, by the types and limits of its fields."""

    def __post_init__(self) -> None:
        check_fields(self)


def _fields(thing: Any) -> dict[str, Field]:
    if thing not in _cache:
        _cache[thing] = fields_of(thing)
    return _cache[thing]


def check_fields(instance: Any) -> None:
    """Refuse invalid settings of a dataclass. A list where a tuple is declared becomes a tuple."""
    kind = type(instance)
    try:
        fields = _fields(kind)
    except NameError:  # type hints of a class that was defined in a function
        return
    for name, field in fields.items():
        given = getattr(instance, name)
        value = read(kind.__name__, field, given)
        if type(value) is not type(given) and isinstance(given, list | tuple):
            object.__setattr__(instance, name, value)


def check_settings(where: str, fields: Mapping[str, Field], given: Mapping[str, Any]) -> None:
    """Refuse invalid values; names that are not in `fields` are not checked."""
    for name, value in given.items():
        if name in fields:
            read(where, fields[name], value)


def read(where: str, field: Field, value: Any) -> Any:
    """The value, converted to the type of its setting; a SettingError names the setting."""
    if value is field.default and value is not REQUIRED:
        return value
    try:
        return READER.read(field.hint, value, (field.name,), field.limit)
    except BadKey as problem:
        colon = "" if problem.problem.startswith("must be ") else ":"
        name = f"{where}: {'.'.join(problem.path)}{colon}"
        raise SettingError(f"{name} {problem.problem}") from None


def checked(*without: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: arguments are checked against the function's types and limits, except those
    named in `without`, which the function checks itself."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        where = function.__qualname__.removesuffix(".__init__")
        signature = inspect.signature(function)
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        skipped = {name for name, p in signature.parameters.items() if p.kind in variadic}
        skipped |= {"self", *without}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            fields = _fields(function)
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name not in skipped:
                    try:
                        read(where, fields[name], value)
                    except SettingError as problem:
                        message = f"{problem}{_order_hint(fields, name, value)}"
                        raise SettingError(message) from None
            return function(*args, **kwargs)

        return call

    return decorate


def _order_hint(fields: Mapping[str, Field], name: str, value: Any) -> str:
    """The order of the arguments, where an object would be valid as another one of them."""
    required = [f for f in fields.values() if f.default is REQUIRED and f.name != "self"]
    others = [] if isinstance(value, SIMPLE) else [f for f in required if f.name != name]
    for field in others:
        try:
            READER.read(field.hint, value, ())
        except BadKey:
            continue
        return f"; the order is {', '.join(f.name for f in required)}"
    return ""
