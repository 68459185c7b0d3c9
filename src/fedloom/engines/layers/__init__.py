"""Rules for layers of many clients at once, on a CPU and (gpu/) on a GPU.

May import: core, models.
"""
