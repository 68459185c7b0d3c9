"""A real federation: keys, agreement on rows, a party's program, prediction, the rehearsal.

May import: everything but report pages, reproductions and the command line.
"""
