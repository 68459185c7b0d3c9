"""What can be named in a run file, with its settings: for `fedloom list` and the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..registry import algorithms, datasets, losses, models
from .convert import described, plain
from .fields import REQUIRED, Field, fields_of
from .sections import FILLED, about

KINDS = ("algorithms", "models", "datasets", "losses")


def catalogue(kind: str) -> list[dict[str, Any]]:
    """Every name of a kind: what it is, and its fields."""
    match kind:
        case "algorithms":
            return [_entry(name, about(algorithms[name]), algorithms[name]) for name in algorithms]
        case "models":
            return [_entry(name, about(models[name]), models[name], FILLED) for name in models]
        case "datasets":
            return [
                _entry(name, datasets[name].about, datasets[name].load, ("files",))
                for name in datasets
            ]
    return [{"name": name, "about": about(losses[name]), "fields": []} for name in losses]


def _entry(name: str, text: str, thing: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "about": text, "fields": told(fields_of(thing, without))}


def told(fields: Mapping[str, Field]) -> list[dict[str, Any]]:
    """Fields for people and programs."""
    return [
        {
            "name": field.name,
            "type": described(field.hint),
            "required": field.default is REQUIRED,
            "default": None if field.default is REQUIRED else shown(field.default),
            "about": field.about,
        }
        for field in fields.values()
    ]


def shown(default: Any) -> Any:
    return "none" if default is None else plain(default)
