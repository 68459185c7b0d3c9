"""Explain: every message that would leave every party in a round, found by running one."""

from .explanation import Explanation, Line, Sent, Work, protection
from .watch import explain, explain_algorithm

__all__ = ["Explanation", "Line", "Sent", "Work", "explain", "explain_algorithm", "protection"]
