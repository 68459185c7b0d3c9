"""The command line: `fedloom VERB ...`. One module a verb; exit codes are in main.

May import: everything.
"""
