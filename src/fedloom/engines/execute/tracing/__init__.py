"""A function of tensors, written down as a graph of torch's operations: shared by the executors.

player.py decides when, trace.py traces, simplify.py and reuse.py make the graph cheaper with the
same bits. What touches torch's compiler is imported when something is traced, not before.
"""
