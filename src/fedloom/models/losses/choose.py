"""A loss by name, with settings, or of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...core.errors import ModelError, SettingError, nearest
from ...core.registry import losses
from ...core.settings import shown
from ...data.dataset import Goal
from .base import Loss
from .own import OwnLoss

LossLike = str | Mapping[str, Any] | Loss | Callable[[Tensor, Tensor], Tensor]
"""A name, a table {"name": ..., settings}, a `Loss`, or a torch loss or function of scores and
labels that gives a number for each row."""


def loss_of(given: LossLike, goal: Goal | None = None) -> Loss:
    """The loss that is meant; `goal`: of the data, for one's own functions."""
    if isinstance(given, Loss):
        return given
    if isinstance(given, str):
        return made(given, {})
    if isinstance(given, Mapping):
        settings = {key: value for key, value in given.items() if key != "name"}
        if "name" not in given:
            raise SettingError('loss: say its "name": fedloom list losses')
        return made(given["name"], settings)
    if isinstance(given, type):
        raise SettingError(f"loss: a name, a Loss or a function is expected, not {shown(given)}")
    return OwnLoss(given, goal)


def made(name: str, settings: Mapping[str, Any]) -> Loss:
    """A registered loss with these settings."""
    kind = losses[name]
    known = losses.settings(name)
    for key in settings:
        if key not in known:
            raise SettingError(unknown_setting(name, key))
    loss = kind(**settings)
    if not isinstance(loss, Loss):
        raise ModelError(f"loss {name}: it is registered, but makes no Loss")
    return loss


def unknown_setting(name: str, key: str) -> str:
    """The error text for a setting that a loss does not have."""
    known = losses.settings(name)
    if key == "class_weights":
        having = [other for other in losses if key in losses.settings(other)]
        return f"class_weights are for losses of classes ({', '.join(having)}), not for {name}"
    if not known:
        return f"{key!r}: {name} has no settings"
    return f"unknown key {key!r}{nearest(key, known)}"


def described(loss: Loss) -> dict[str, Any] | None:
    """Name and settings of a registered loss, for files; None for one's own."""
    for name in losses:
        if losses[name] is type(loss):
            return {"name": name, **{key: getattr(loss, key) for key in losses.settings(name)}}
    return None
