"""Figures and the HTML page of a run, from its folder alone.

May import: core, privacy, records, config.
"""
