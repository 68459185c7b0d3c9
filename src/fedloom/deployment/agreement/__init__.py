"""Agreement before the first round, on common rows and shared facts: `fedloom align`.

May import: everything below deployment, deployment.channel, deployment.keys.
"""
