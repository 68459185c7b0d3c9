"""Asynchronous split learning: VAFL and the thesis' variant. Silos visit a master.

May import: what algorithms may.
"""
