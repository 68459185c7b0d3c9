"""What a table of a run file may hold, read off the code that uses it: the fields of a dataclass or
the parameters of a function, with `Annotated[type, "what it is"]` for people."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Field:
    """One key. `default` REQUIRED: there is none."""

    name: str
    hint: Any
    default: Any = REQUIRED
    about: str = ""


def fields_of(thing: Callable[..., Any], without: Collection[str] = ()) -> dict[str, Field]:
    """The settings of a dataclass or function, but for some."""
    if dataclasses.is_dataclass(thing):
        hints = get_type_hints(thing, include_extras=True)
        defaults = {f.name: _default(f) for f in dataclasses.fields(thing) if f.init}
    else:
        hints = get_type_hints(thing, include_extras=True)
        parameters = inspect.signature(thing).parameters
        defaults = {name: given.default for name, given in parameters.items()}
    return {
        name: Field(name, *_about(hints[name], default))
        for name, default in defaults.items()
        if name not in without
    }


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default is not dataclasses.MISSING:
        return f.default
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else REQUIRED


def _about(hint: Any, default: Any) -> tuple[Any, Any, str]:
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        return hint, default, " ".join(note for note in notes if isinstance(note, str))
    return hint, default, ""
