"""Run files: one TOML file describes a run. Its keys are those of the code that takes them.

May import: core, data, models, fabric, privacy, algorithms.
"""
