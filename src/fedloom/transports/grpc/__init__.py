"""Parties on different machines: gRPC with mutual TLS.

May import: core, fabric, transports.
"""
