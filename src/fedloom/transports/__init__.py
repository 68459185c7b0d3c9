"""How messages travel: one mailbox for every transport, frames, links that survive their
connections. The memory transport is the simplest.

May import: core, fabric.
"""
