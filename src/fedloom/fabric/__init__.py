"""The fabric: verbs that algorithms are written in, kinds of messages, the base of all engines, the
ledger of traffic, schedules of who is present, permits for messages.

May import: core, data, models.
"""
