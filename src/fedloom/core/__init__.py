"""What every other package uses: errors, settings, random streams, trees of tensors, registries,
files, the parties of a run (topology) and values that live at a party (placed).

May import: nothing of FedLoom.
"""
