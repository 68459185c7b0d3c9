"""Explain: every message that would leave every party in a round, found by running one."""

from .explanation import UNPROTECTED, Explanation, Line, Sent, Work
from .watch import explain, explain_algorithm

__all__ = ["UNPROTECTED", "Explanation", "Line", "Sent", "Work", "explain", "explain_algorithm"]
