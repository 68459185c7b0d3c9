"""Noise on what leaves a client: its settings, and what can be promised of it.

May import: core.
"""
