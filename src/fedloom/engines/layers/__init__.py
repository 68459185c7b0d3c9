"""Layers of many clients at once: rules that replace torch's, on a CPU (cpu.py) and a GPU (gpu/);
levels.py asks torch.func which transforms are active.

May import: core, models.
"""

from . import levels

__all__ = ["levels"]
