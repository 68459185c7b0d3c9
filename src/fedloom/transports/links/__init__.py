"""Links between parties that outlive their connections: numbered messages, sessions, handshakes,
and the base of transports that have them.

May import: core, fabric, transports.
"""
