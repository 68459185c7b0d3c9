"""A run as a notebook shows it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from ..records.record import Record
from .curves import curves


def png(records: Sequence[Record], name: str, metric: str | None) -> bytes:
    """The metric so far, or the loss where there are no test rows, against rounds."""
    known = metric is not None and records[-1].metrics.get(metric) is not None
    shown = metric if metric is not None and known else "train_loss"
    figure = curves({name: [record.to_json() for record in records]}, shown, "round")
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=80)
    return out.getvalue()
