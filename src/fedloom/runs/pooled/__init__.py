"""Baselines that are no federation: what is learned from the pooled rows, in one place.

network.py is the same network trained to convergence, analyst.py what scikit-learn gives; Pooled
(baseline.py) checks, trains and judges one of them.
"""
