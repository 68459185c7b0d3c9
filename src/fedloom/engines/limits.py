"""The thresholds of the engines, in one place. A test passes others in; results do not depend on
them but for last digits."""

from __future__ import annotations

from dataclasses import dataclass

KB, MB = 2**10, 2**20


@dataclass(frozen=True)
class Limits:
    """Bytes, unless said otherwise."""

    # Who is computed together
    chunk: int = 16 * MB
    """Of a chunk of clients on a CPU: about what a core has of the last cache."""
    padding: int = 512 * KB
    """Of padding that are worth another chunk."""
    shared_models: int = 4 * MB
    """Of all clients' models for which silos share chunks, or"""
    shared_light_models: int = 64 * MB
    """so many, if each model has no more than"""
    light_model: int = 64 * KB
    """these."""
    few_rows: int = 256 * KB
    """Of rows of one model up to which padding them costs less than taking them apart."""
    light_row: int = 4 * KB
    """Of a row of which three more do not matter, beside as many weights."""
    thread_rows: int = 256 * KB
    """Of a chunk's rows that are worth a thread."""
    piece: int = 128 * MB
    """Of the rows of one model whose gradients are computed at once."""
    gpu_piece: int = 512 * MB
    """Of rows in a chunk that keep a GPU busy."""
    gpu_pieces: int = 5
    """Chunks of a GPU for the sake of padding alone."""

    # What is kept
    joined_rows: int = 64 * MB
    """Of silos' rows that are joined, and so held twice."""
    minibatch: int = 32 * MB
    """Of a minibatch's rows that are kept, not taken twice."""
    chunk_values: int = 32
    """Values kept of a chunk's clients: asynchronous rounds have very many."""
    lone_sum: int = 2**16
    """Numbers of a client's tensor from which clients are added up one by one."""

    # How it is executed
    columns_per_row: int = 2
    """From so many columns for each row, steps go over rows by rows (plain/few_rows.py)."""
    traced_seconds: float = 0.02
    """Seconds that calls take in the mean from which tracing is worth its time."""
    programs: int = 64
    """Compiled programs: work that differs in every round would never end compiling."""
    program_model: int = 256 * KB
    """Of a client's model from which torch's products are faster than compiled loops."""
    program_sums: int = 64 * MB
    """Of the sums of all blocks of clients in a compiled program."""
    thread_operations: int = 2**20
    """Operations of a compiled program that are worth another thread."""
    recordings: int = 128
    """Recordings of a compiled step on a GPU: two for each number of rows."""


DEFAULT = Limits()
