"""Who is who: certificates of organisations and their parties, lists of who may come in, secrets.

May import: core.
"""
