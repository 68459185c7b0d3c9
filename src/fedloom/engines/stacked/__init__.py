"""The stacked engine simulates all parties in one process and computes many clients at once.

May import: core, data, models, fabric, engines.execute, engines.layers.
"""
