"""Data before training: registered data sets, users' tables, their partition over silos and
clients, and the rows that each party holds (placement).

May import: core.
"""
