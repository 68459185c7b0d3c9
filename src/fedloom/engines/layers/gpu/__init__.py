"""Convolutions of many clients on a GPU: matrix products, and kernels written in Triton.

May import: core.
"""
