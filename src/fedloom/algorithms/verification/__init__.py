"""What the battery holds each algorithm to: its closed cost formula, small settings, degenerate
cases. One file an algorithm; importing this package registers them.

May import: what algorithms may.
"""

from . import (
    alone,
    central,
    fedavg,
    fedbcd,
    hyfem,
    splitnn,
    splitnn_async,
    splitnn_u,
    tdcd,
    tdcd_private_labels,
    vafl,
    visiting,
)

__all__ = [
    "alone",
    "central",
    "fedavg",
    "fedbcd",
    "hyfem",
    "splitnn",
    "splitnn_async",
    "splitnn_u",
    "tdcd",
    "tdcd_private_labels",
    "vafl",
    "visiting",
]
