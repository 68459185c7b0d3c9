"""Differential privacy for embeddings that leave a client: settings of clipping and noise, and
accounting of the privacy budget.

May import: core.
"""
