"""The command line: `fedloom COMMAND ...`. One module for each; main.py has the exit codes.

May import: everything.
"""
