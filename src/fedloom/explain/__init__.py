"""Explain: every message that would leave every party in a round, found by a dry run.

May import: everything below deployment.
"""

from .explanation import UNPROTECTED, Explanation, MessageGroup, SentMessage, Work
from .watch import explain, explain_algorithm

__all__ = [
    "UNPROTECTED",
    "Explanation",
    "MessageGroup",
    "SentMessage",
    "Work",
    "explain",
    "explain_algorithm",
]
