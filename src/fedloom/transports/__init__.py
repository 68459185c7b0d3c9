"""Transports: the mailbox that all of them deliver into, frames, links that outlive connections; in
memory, over a user's messaging system (carrier/), over gRPC.

May import: core, fabric.
"""
