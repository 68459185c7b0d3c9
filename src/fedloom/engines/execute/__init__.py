"""How local work is executed: the interface `Executor` (executor.py), a folder for each executor
(plain, traced, compiled by torch, native in C), and choose.py, which picks them for a run.

May import: core, models, fabric, engines.layers; each executor tracing/, but no other executor.
"""
