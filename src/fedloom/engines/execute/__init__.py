"""How local work is run fast: replayed, traced, compiled by torch, or compiled as C (native).

Every way gives what plain calls give, or says that it cannot. May import: core, models, fabric.
"""
