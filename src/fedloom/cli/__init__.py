"""The command line: `fedloom VERB ...`. One module for each verb; main.py has the exit codes.

May import: everything.
"""
