"""The engines that run rounds: party (the reference, and every real party), stacked (a simulation
that computes many clients at once), multiprocess (one owner's GPUs).

May import: core, data, models, fabric, transports; never an algorithm.
"""
