"""Links over a user's messaging system, which needs one method: send a request, return the answer.
An example in memory, with faults on request.

May import: core, fabric, transports.
"""
