"""What everything else stands on: errors, random streams, trees of tensors, registries, files,
who takes part (topology) and where a value lives (placed).

May import: nothing of FedLoom.
"""
