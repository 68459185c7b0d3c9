"""Explain: every message that would leave every party in a round, found by a dry run.

May import: everything below explain.
"""

from .explanation import UNPROTECTED, Explanation, LocalWork, MessageGroup, SentMessage
from .watch import explain, explain_algorithm

__all__ = [
    "UNPROTECTED",
    "Explanation",
    "LocalWork",
    "MessageGroup",
    "SentMessage",
    "explain",
    "explain_algorithm",
]
