"""Scores of a finished federation for one of its parties: `fedloom predict`.

May import: everything below deployment, deployment.agreement, deployment.party.
"""
