"""From a run file to results: a run, its evaluation, a run in a folder, sweeps of many.

May import: everything below runs.
"""
