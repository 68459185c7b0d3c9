"""Cutting one data set both ways: columns across silos, rows across the clients of each.

May import: core, data.
"""
