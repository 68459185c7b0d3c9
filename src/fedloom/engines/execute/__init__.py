"""How local work is executed: one seam, `Executor` (executor.py), and a folder for each: plain,
traced, compiled (by torch), native (C). choose.py picks them for a run.

Every executor gives what plain calls give, or says that it cannot. May import: core, models,
fabric, engines.layers; each executor tracing/, but no other executor.
"""
