"""Names that a run file can use, with their settings: for `fedloom list` and the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..core.registry import (
    algorithms,
    datasets,
    executors,
    horizontal_partitioners,
    losses,
    metrics,
    models,
    transports,
    vertical_partitioners,
    writers,
)
from ..core.settings import REQUIRED, Field, fields_of
from .convert import described, plain
from .sections import FILLED, about

REGISTRIES = {
    registry.plural: registry
    for registry in (
        algorithms,
        models,
        datasets,
        losses,
        metrics,
        vertical_partitioners,
        horizontal_partitioners,
        writers,
        transports,
        executors,
    )
}
KINDS = tuple(REGISTRIES)


def catalogue(kind: str) -> list[dict[str, Any]]:
    """Every registered name of a kind, with a description and its fields."""
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
        case "metrics":
            return [{"name": name, "about": metrics[name].about, "fields": []} for name in metrics]
    registry = REGISTRIES[kind]
    return [
        _entry(name, about(registry[name]), registry[name], registry.given) for name in registry
    ]


def broken(kinds: Iterable[str]) -> dict[str, str]:
    """Plugins of these kinds that cannot be loaded: {which: why}."""
    return {which: why for kind in kinds for which, why in REGISTRIES[kind].broken.items()}


def _entry(name: str, text: str, thing: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "about": text, "fields": field_rows(fields_of(thing, without))}


def field_rows(fields: Mapping[str, Field]) -> list[dict[str, Any]]:
    """Fields as plain values, for tables and JSON."""
    return [
        {
            "name": field.name,
            "type": described(field.hint) + (f", {field.limit.words}" if field.limit else ""),
            "required": field.default is REQUIRED,
            "default": None if field.default is REQUIRED else shown(field.default),
            "about": field.about,
        }
        for field in fields.values()
    ]


def shown(default: Any) -> Any:
    return "none" if default is None else plain(default)
