"""Virtual time: what a run would take on a given network, and who is late.

May import: core, fabric.
"""
