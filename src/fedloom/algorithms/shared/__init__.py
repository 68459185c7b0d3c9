"""What several algorithms share: minibatches, the tiers' messages and means, local steps, their
privacy (protection.py, releasing.py), step sizes, checks.

May import: algorithms.contract, and what algorithms may.
"""
