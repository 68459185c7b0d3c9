"""Figures and tables of the papers, one description each: `fedloom reproduce NAME`.

experiment.py reads a description (papers/NAME.toml), conduct.py runs it, lines.py has its curves,
verdicts.py judges them, figure.py draws them, results.py writes and reads the results.
May import: everything below, and report; never deployment or the command line.
"""
