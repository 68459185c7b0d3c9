"""Tests for algorithms, ours and others': the battery's checks, and what to run them on.

May import: everything below testing, deployment included.
"""

from .battery import CHECKS
from .samples import examples_of, placement, sample_of, task

__all__ = ["CHECKS", "examples_of", "placement", "sample_of", "task"]
