"""The stacked engine simulates all parties in one process and computes many clients at once.

Its base classes have a concern each: engine.py on reduce.py (moves up), booking.py (the ledger),
clients.py (local work). lazy.py is values at clients, plan.py who is computed together.

May import: core, data, models, fabric, engines.execute, engines.layers.
"""
