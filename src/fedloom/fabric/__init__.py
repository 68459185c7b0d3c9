"""What an algorithm is written in: verbs that move values between parties, kinds of messages, the
ledger of what was sent, schedules of who is there, permits.

May import: core, data, models.
"""
