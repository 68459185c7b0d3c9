"""Figures and the HTML page of a run, from its folder alone.

May import: core, models, privacy, records, config.
"""
