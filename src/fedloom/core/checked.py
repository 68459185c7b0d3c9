"""Settings are checked where they are given: by a dataclass when it is made, by a function when it
is called."""

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
_known: dict[Any, dict[str, Field]] = {}


class Checked:
    """A dataclass that is checked when it is made, by the types and limits of its fields."""

    def __post_init__(self) -> None:
        check_fields(self)


def _fields(thing: Any) -> dict[str, Field]:
    if thing not in _known:
        _known[thing] = fields_of(thing)
    return _known[thing]


def check_fields(made: Any) -> None:
    """Refuse settings that cannot be; a list that is to be a tuple becomes one."""
    kind = type(made)
    try:
        fields = _fields(kind)
    except NameError:  # hints of a class in a function, say
        return
    for name, field in fields.items():
        given = getattr(made, name)
        value = read(kind.__name__, field, given)
        if type(value) is not type(given) and isinstance(given, list | tuple):
            object.__setattr__(made, name, value)


def check_settings(where: str, fields: Mapping[str, Field], given: Mapping[str, Any]) -> None:
    """Refuse settings, of those that are known, that cannot be."""
    for name, value in given.items():
        if name in fields:
            read(where, fields[name], value)


def read(where: str, field: Field, value: Any) -> Any:
    """A value as its setting wants it, or a SettingError that says of what it is."""
    if value is field.default and value is not REQUIRED:
        return value
    try:
        return READER.read(field.hint, value, (field.name,), field.limit)
    except BadKey as problem:
        colon = "" if problem.problem.startswith("must be ") else ":"
        name = f"{where}: {'.'.join(problem.path)}{colon}"
        raise SettingError(f"{name} {problem.problem}") from None


def checked(*without: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that refuses arguments that are not of the types and limits it names, but for
    those that it looks at itself."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        where = function.__qualname__.removesuffix(".__init__")
        signature = inspect.signature(function)
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        left_out = {name for name, one in signature.parameters.items() if one.kind in several}
        left_out |= {"self", *without}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            fields = _fields(function)
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name not in left_out:
                    try:
                        read(where, fields[name], value)
                    except SettingError as problem:
                        told = f"{problem}{_order(fields, name, value)}"
                        raise SettingError(told) from None
            return function(*args, **kwargs)

        return call

    return decorate


def _order(fields: Mapping[str, Field], name: str, value: Any) -> str:
    """What to say where an object would do as another argument."""
    needed = [one for one in fields.values() if one.default is REQUIRED and one.name != "self"]
    others = [] if isinstance(value, SIMPLE) else [one for one in needed if one.name != name]
    for field in others:
        try:
            READER.read(field.hint, value, ())
        except BadKey:
            continue
        return f"; the order is {', '.join(one.name for one in needed)}"
    return ""
