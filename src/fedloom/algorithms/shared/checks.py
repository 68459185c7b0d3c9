"""Checks that several algorithms make before any training."""

from __future__ import annotations

from ...core.errors import DataError, SettingError, nearest
from ...data.placement import Placement


def check_batch(batch: int | None, placement: Placement) -> None:
    """Refuse a minibatch that there are no rows for."""
    if batch is not None and batch > placement.size:
        raise SettingError(f"batch (B) is {batch}, but there are only {placement.size} common rows")


def need_labels(placement: Placement, silos: tuple[str, ...], cure: str) -> None:
    """Refuse silos without labels."""
    for silo in silos:
        if placement.y[silo] is None:
            raise DataError(f"silo {silo} holds no labels: {cure}")


def label_silo(labels_at: str | None, placement: Placement) -> str:
    """The silo that holds the labels (None: the first); refuse one that does not."""
    silos = placement.topology.silos
    if labels_at is not None and labels_at not in silos:
        raise SettingError(f"labels_at: {labels_at!r}{nearest(labels_at, silos)}")
    holder = labels_at or silos[0]
    labelled = ", ".join(silo for silo in silos if placement.y[silo] is not None)
    cure = f"labels_at must name the silo that holds them (here: {labelled or 'none'})"
    need_labels(placement, (holder,), cure)
    return holder
