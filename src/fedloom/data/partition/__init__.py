"""Partitions of one data set: columns go to silos (vertical), rows to the clients of each silo
(horizontal). A partition can be saved as a cut.

May import: core, data (except data.tables).
"""
