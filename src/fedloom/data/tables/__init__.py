"""CSV and Parquet tables: read, typed, matched by id and turned into numbers.

Cells and ids never reach an error text. May import: core, data.
"""
