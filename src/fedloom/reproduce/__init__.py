"""Figures and tables of the papers, one description each: `fedloom reproduce NAME`.

experiment.py reads a description (papers/NAME.toml), conduct.py runs it, lines.py has the curves
that came of it, verdicts.py judges them, figure.py draws them, results.py keeps what was found.
"""
