"""Who runs a round: the party engine (the reference, and every real party), the stacked engine
(many clients at once on one machine), the multiprocess engine (one owner's GPUs).

May import: core, data, models, fabric, transports; never an algorithm.
"""
