"""The stacked engine: all parties in one process, many clients computed at once.

May import: core, data, models, fabric, engines.execute, engines.layers.
"""
