"""What the battery holds each algorithm to: its closed cost formula (costs.py), small settings and
degenerate cases (battery_cases.py). One file an algorithm; importing this package registers them.

May import: algorithms, and what they may.
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
