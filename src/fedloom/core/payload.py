"""What a message may carry: tensors, what holds them, and NamedTuples that are marked."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from .errors import SettingError

# What one row of a payload is; the task knows its shape. `embedding`: what a silo's block gives;
# `joint`: where embeddings meet; `views`: one joint row per silo; `middle`: what the task's middle
# gives; `scores`: what the loss is taken of.
RowWord = Literal["embedding", "joint", "scores", "views", "middle", "features", "label"]

T = TypeVar("T", bound=type)

RECORDS: dict[str, Any] = {}  # name -> NamedTuple that may be part of a payload


def travels(record: T) -> T:
    """Marks a NamedTuple that may leave a party as (part of) a payload; others cannot."""
    if RECORDS.setdefault(record.__name__, record) is not record:
        raise SettingError(f"two records are called {record.__name__}")
    return record
