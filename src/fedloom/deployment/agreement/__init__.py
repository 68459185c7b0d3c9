"""How organisations come to know what all parties must know before the first round.

May import: everything below deployment, deployment.keys, deployment.party.
"""
