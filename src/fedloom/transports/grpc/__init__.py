"""Transport between machines: gRPC with mutual TLS.

May import: core, fabric, transports.
"""
