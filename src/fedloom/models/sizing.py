"""Sizes models by the data: fills in what a factory needs to know about rows and labels."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from ..core.checked import check_settings
from ..core.errors import ModelError, SettingError, nearest
from ..core.registry import models
from ..core.settings import fields_of
from .block import Source
from .library import registered


def sized(
    name: str, shape: tuple[int, ...], outputs: int, settings: Mapping[str, Any], where: str
) -> Source:
    """The registered model `name` for rows of this shape: [columns], [channels, height, width],
    [time, columns], or [views, ...]. Models of flat rows flatten the others."""
    wants = inspect.signature(models[name]).parameters
    for key in settings:
        if key not in wants:
            raise SettingError(f"model {name} has no setting {key!r}{nearest(key, wants)}")
    check_settings(f"model {name}", fields_of(models[name]), settings)
    filled: dict[str, Any] = {"outputs": outputs}
    if "channels" in wants:
        if len(shape) != 3:
            raise ModelError(f"{where}: {name} wants images, the rows have shape {list(shape)}")
        filled |= {"channels": shape[0], "size": (shape[1], shape[2])}
    elif "views" in wants:
        if len(shape) < 2:
            raise ModelError(f"{where}: {name} wants views, the rows have shape {list(shape)}")
        filled |= {"views": shape[0], "shape": shape[1:]}
    elif "flatten" in wants:
        filled |= {"inputs": math.prod(shape), "flatten": len(shape) > 1}
    else:
        if "inputs" in wants and len(shape) > 2:
            raise ModelError(f"{where}: {name} wants series, the rows have shape {list(shape)}")
        filled["inputs"] = shape[-1]
    derived = {key: value for key, value in filled.items() if key in wants}
    for key, parameter in wants.items():
        if parameter.default is parameter.empty and key not in {**derived, **settings}:
            raise SettingError(f"model {name} needs {key!r}")
    return registered(name, {**derived, **settings})


def sized_blocks(
    shapes: Mapping[str, tuple[int, ...]],
    outputs: int,
    models_by_silo: Mapping[str, Mapping[str, Any]],
) -> dict[str, Source]:
    """A block for every silo. `models_by_silo`: {silo: {"name": ..., settings}}."""
    blocks = {}
    for silo, shape in shapes.items():
        settings = {key: value for key, value in models_by_silo[silo].items() if key != "name"}
        blocks[silo] = sized(models_by_silo[silo]["name"], shape, outputs, settings, f"silo {silo}")
    return blocks


def sized_top(model: str | Mapping[str, Any], inputs: int, outputs: int, where: str) -> Source:
    """A model over embeddings. `model`: its name, or {"name": ..., settings}."""
    settings = {"name": model} if isinstance(model, str) else dict(model)
    return sized(settings.pop("name", "linear"), (inputs,), outputs, settings, where)


def joint_width(combine: str, embedding: int, silos: int) -> int:
    """The width of the joint embedding."""
    return embedding * (silos if combine == "concat" else 1)
