"""HyFEM: hybrid federated matched averaging of clients' models.

May import: what algorithms may.
"""
