"""Run files: a TOML file that describes a run. Most keys are the settings of data sets, models and
algorithms; this package reads, checks, writes and documents them.

May import: core, data, models, fabric, privacy, algorithms.
"""
