"""The party engine: hosts any set of parties, and reaches all others through a transport.

Hosting everyone it is the reference. May import: core, data, models, fabric, transports.
"""
