"""Tests for algorithms, ours and others': see `fedloom.testing.battery`."""

from .battery import CHECKS
from .samples import placement, sample_of, task

__all__ = ["CHECKS", "placement", "sample_of", "task"]
