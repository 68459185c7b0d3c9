"""One party's program: its file, links, checkpoints, log, status; how it resumes and goes back.

May import: everything below deployment, deployment.agreement, deployment.keys.
"""
