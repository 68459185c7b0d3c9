"""Packages that only an extra brings: what needs one says which, before it begins.

`pip install fedloom` brings what a simulation needs. The rest is asked for by name, as in
`pip install 'fedloom[report]'`, and is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from .errors import SettingError

EXTRAS: Mapping[str, Mapping[str, str]] = {
    "data": {"PIL": "pillow", "sklearn": "scikit-learn"},
    "mlflow": {"mlflow": "mlflow-skinny"},
    "network": {"cryptography": "cryptography", "grpc": "grpcio", "msgspec": "msgspec"},
    "optuna": {"optuna": "optuna"},
    "privacy": {"dp_accounting": "dp-accounting"},
    "report": {"jinja2": "jinja2", "matplotlib": "matplotlib", "PIL": "pillow"},
    "tensorboard": {"tensorboard": "tensorboard"},
}
"""Of each extra, the packages that are imported: {module: package}."""


def lacking(extra: str, what: str) -> str | None:
    """Why something that needs an extra cannot be had here, in a sentence; None where it can."""
    absent = [package for module, package in EXTRAS[extra].items() if not _is_there(module)]
    if not absent:
        return None
    return f"{what} needs {' and '.join(absent)}: pip install 'fedloom[{extra}]'"


def need(extra: str, what: str) -> None:
    """Refuse what needs an extra that is not installed."""
    if (why := lacking(extra, what)) is not None:
        raise SettingError(why)


def extra_of(module: str) -> str | None:
    """The extra that brings a module, or what is in it."""
    return next((extra for extra, brings in EXTRAS.items() if module.split(".")[0] in brings), None)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # what looks for modules refuses this one
        return False
