"""Convolutions of many clients on a GPU: the choice by layer (convolutions.py), batched matrix
products (products.py) and Triton kernels (kernels.py).

May import: core, engines.layers.
"""
