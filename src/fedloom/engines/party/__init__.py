"""The party engine hosts any set of parties and reaches all others through a transport. Hosting all
parties, it is the reference engine. engine.py stands on moves.py; values.py is what a client has.

May import: core, data, models, fabric, transports.
"""
