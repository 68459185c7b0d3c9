"""Many runs of one run file: every point of a grid, or points that Optuna chooses.

May import the other files of runs/, and what these may.
"""
