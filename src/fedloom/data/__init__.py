"""Data before training: data sets, tables, their partition over silos and clients, and what each
party holds of them (placement).

May import: core.
"""
