"""The stacked engine over several processes of one owner, which torchrun starts: clients are
divided among ranks.

May import: core, data, models, fabric, engines.stacked.
"""
