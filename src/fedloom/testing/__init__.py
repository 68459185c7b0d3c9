"""Tests for algorithms, ours and others': see `fedloom.testing.battery`."""

from .battery import CHECKS
from .samples import fitting, placement, task

__all__ = ["CHECKS", "fitting", "placement", "task"]
