"""The virtual clock: how long a run would take on a given network, and which silos are delayed.

May import: core, fabric.
"""
