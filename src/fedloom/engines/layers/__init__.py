"""Rules for layers of many clients at once, on a CPU and (gpu/) on a GPU; levels.py: what is known
of torch.func's transforms.

May import: core, models.
"""

from . import levels

__all__ = ["levels"]
