"""The party engine hosts any set of parties and reaches all others through a transport. Hosting all
parties, it is the reference engine.

May import: core, data, models, fabric, transports.
"""
