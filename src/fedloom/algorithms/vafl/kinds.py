"""Messages of a visit, beside those that tiered algorithms have. Their names on the wire stay."""

from __future__ import annotations

from ...fabric.kinds import Kind

HUB_LABELS = Kind(
    "hub-labels",
    "the labels of a minibatch, from their silo to the master",
    "label",
    reveals="the labels",
)
GRADIENT = Kind(
    "slope",
    "derivatives of the loss by the visitor's embeddings",
    "embedding",
    reveals="labels: without a head the negative entry of a row IS its label, with one rows can "
    "still be sorted by label",
)
OWN_GRADIENT = Kind(
    "own-slope",
    "the derivatives of a client's own rows, to that client",
    "embedding",
    reveals="labels, as they do to its hub",
)
