"""From what TOML can say to what the code wants, by type hints; and back.

TOML has no None: the word "none" stands for it where a key may be None.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..algorithms.stepsize import RULES, StepSize
from ..errors import SettingError, nearest
from .fields import REQUIRED, Field, fields_of

Path = tuple[str, ...]


class BadKey(SettingError):
    """A key or value of a run file that cannot be; `path` says which."""

    def __init__(self, path: Path, problem: str):
        super().__init__(problem)
        self.path, self.problem = path, problem


def convert(hint: Any, value: Any, path: Path) -> Any:
    """`value` as the hint wants it, or BadKey."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return convert(args[0], value, path)
    if origin in (Union, types.UnionType):
        return _one_of(args, value, path)
    if origin is Literal:
        if value in args and type(value) in {type(arg) for arg in args}:
            return value
        raise BadKey(path, f"{_shown(value)} is not one of the choices{nearest(str(value), args)}")
    if hint is StepSize:
        return _rule(value, path)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong(hint, value, path)
        return hint(**table(fields_of(hint), value, path))
    if _is(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(hint, value, path)
        return {key: convert(args[1], v, (*path, key)) for key, v in value.items()}
    if origin is tuple or _is(origin, Sequence):
        return _list(hint, value, path)
    return _plain(hint, value, path)


def table(fields: Mapping[str, Field], values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A table with these fields, defaults filled in; unknown and missing keys are refused."""
    for key in values:
        if key not in fields:
            raise BadKey((*path, key), f"unknown key {key!r}{nearest(key, fields)}")
    found = {}
    for name, field in fields.items():
        if name in values:
            found[name] = convert(field.hint, values[name], (*path, name))
        elif field.default is REQUIRED:
            raise BadKey(path, f"the key {name!r} is missing")
        else:
            found[name] = field.default
    return found


def _is(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _one_of(args: tuple[Any, ...], value: Any, path: Path) -> Any:
    if type(None) in args and value == "none":
        return None
    problems: list[BadKey] = []
    for arg in args:
        if arg is type(None):
            continue
        try:
            return convert(arg, value, path)
        except BadKey as problem:
            problems.append(problem)
    deepest = max(problems, key=lambda problem: len(problem.path))
    if len(deepest.path) > len(path) or len(problems) == 1:
        raise deepest
    for arg, why in zip((a for a in args if a is not type(None)), problems, strict=True):
        same_kind = isinstance(value, str) and get_origin(arg) is Literal
        if same_kind or (isinstance(value, Mapping) and arg is StepSize):
            raise why
    raise _wrong(Union[args], value, path)  # noqa: UP007


def _rule(value: Any, path: Path) -> StepSize:
    """A step-size rule: {rule = "cosine", lr = 0.1, steps = 1000}."""
    if not isinstance(value, Mapping):
        raise _wrong(StepSize, value, path)
    name = value.get("rule", "")
    if name not in RULES:
        raise BadKey((*path, "rule"), f"unknown rule {name!r}{nearest(str(name), RULES)}")
    settings = {key: v for key, v in value.items() if key != "rule"}
    return convert(RULES[name], settings, path)


def _list(hint: Any, value: Any, path: Path) -> Any:
    args, is_tuple = get_args(hint), get_origin(hint) is tuple
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _wrong(hint, value, path)
    if is_tuple and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise BadKey(path, f"{len(args)} values are expected, not {len(value)}")
        return tuple(convert(arg, v, path) for arg, v in zip(args, value, strict=True))
    items = [convert(args[0], v, path) for v in value]
    return tuple(items) if is_tuple else items


def _plain(hint: Any, value: Any, path: Path) -> Any:
    if hint is Any or (hint is float and type(value) is int):
        return value if hint is Any else float(value)
    if type(value) is not hint:
        raise _wrong(hint, value, path)
    return value


def _wrong(hint: Any, value: Any, path: Path) -> BadKey:
    return BadKey(path, f"{described(hint)} is expected, not {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def described(hint: Any) -> str:
    """A hint in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return described(args[0])
    if origin in (Union, types.UnionType):
        words = [described(arg) for arg in args if arg is not type(None)]
        return " or ".join(words)
    if origin is Literal:
        return ", ".join(f'"{arg}"' if isinstance(arg, str) else str(arg) for arg in args)
    if hint is StepSize:
        return "a table with a rule"
    if dataclasses.is_dataclass(hint) or _is(origin, Mapping):
        return "a table"
    if origin is tuple or _is(origin, Sequence):
        inner = described(args[0])
        return (
            f"a list of {inner[2:]}s"
            if inner in ("a whole number", "a number")
            else f"a list of {inner}"
        )
    return WORDS.get(hint, "a value")


def plain(value: Any) -> Any:
    """Back to what TOML can say; keys without a value are left out of tables."""
    if isinstance(value, Mapping):
        return {str(key): plain(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    for name, rule in RULES.items():
        if type(value) is rule:
            return {"rule": name, **plain(dataclasses.asdict(value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    return value


def plain_table(fields: Mapping[str, Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """A table as TOML has it: None is left out where it is the default, and "none" elsewhere."""
    told = {}
    for name, value in values.items():
        if value is not None:
            told[name] = plain(value)
        elif name in fields and fields[name].default is not None:
            told[name] = "none"
    return told
