"""The command line: `fedloom VERB ...`."""
