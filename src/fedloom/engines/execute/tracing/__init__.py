"""Tracing for executors: a function of tensors as a graph of torch's operations. replay.py decides
when to trace, trace.py traces, simplify.py and reuse.py make the graph cheaper, with the same bits.

May import: core, engines.layers. torch's compiler is imported only when something is traced.
"""
