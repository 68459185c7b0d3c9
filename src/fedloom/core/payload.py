"""What a message may carry: tensors, dicts and tuples of them, and NamedTuples marked with
`@travels`."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from .errors import SettingError

# What one row of a payload is; the task knows its shape. `embedding`: the output of a silo's block;
# `joint`: the embeddings combined; `views`: one joint row per silo; `middle`: the output of the
# task's middle; `scores`: the input of the loss.
RowWord = Literal["embedding", "joint", "scores", "views", "middle", "features", "label"]

T = TypeVar("T", bound=type)

RECORDS: dict[str, Any] = {}  # name -> NamedTuple that may be part of a payload


def travels(record: T) -> T:
    """Marks a NamedTuple that may be sent as (part of) a payload; others cannot."""
    if RECORDS.setdefault(record.__name__, record) is not record:
        raise SettingError(f"there are two records with the name {record.__name__}")
    return record
