"""A run as a notebook shows it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from ..records.metrics import HEADLINE
from ..records.record import Record
from .curves import curves


def png(records: Sequence[Record], name: str) -> bytes:
    """The headline metric so far, or the loss, against rounds."""
    known = [m for m in HEADLINE.values() if records[-1].metrics.get(m) is not None]
    metric = known[0] if known else "train_loss"
    figure = curves({name: [record.to_json() for record in records]}, metric, "round")
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=80)
    return out.getvalue()
