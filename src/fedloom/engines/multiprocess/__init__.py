"""The stacked engine over several processes of one owner, started by torchrun.

May import: core, data, models, fabric, engines.stacked.
"""
