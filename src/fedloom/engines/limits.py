"""All thresholds of the engines. Tests pass others. Results do not depend on them, except for last
digits."""

from __future__ import annotations

from dataclasses import dataclass

KB, MB = 2**10, 2**20


@dataclass(frozen=True)
class Limits:
    """Thresholds; in bytes, unless stated otherwise."""

    # Which clients are computed together
    chunk: int = 16 * MB
    """A chunk of clients on a CPU: about a core's share of the last-level cache."""
    padding: int = 512 * KB
    """Padding from which another chunk is cheaper."""
    shared_models: int = 4 * MB
    """Models of all clients up to which silos share chunks, or"""
    shared_light_models: int = 64 * MB
    """this, if each model is at most"""
    light_model: int = 64 * KB
    """this large."""
    few_rows: int = 256 * KB
    """Rows of one model up to which padding costs less than a computation of their own."""
    light_row: int = 4 * KB
    """A row so small that padding by three rows is cheap, if weights are large beside it."""
    thread_rows: int = 256 * KB
    """Rows of a chunk that are worth a thread."""
    piece: int = 128 * MB
    """Rows of one model whose gradients are computed at once."""
    gpu_piece: int = 512 * MB
    """Rows in a chunk that keep a GPU busy."""
    gpu_pieces: int = 5
    """The most chunks on a GPU that only save padding."""

    # What is stored
    joined_rows: int = 64 * MB
    """Rows of silos that are concatenated, and so stored twice."""
    minibatch: int = 32 * MB
    """Rows of a minibatch that are kept, instead of being gathered twice."""
    chunk_values: int = 32
    """The number of values kept for a chunk's clients: asynchronous rounds have very many."""
    lone_sum: int = 2**16
    """Size of a client's tensor from which clients are added one by one."""

    # How work is executed
    columns_per_row: int = 2
    """Columns per row from which steps use products of rows (plain/few_rows.py)."""
    traced_seconds: float = 0.02
    """Average seconds of all calls of a function from which tracing is worth its time."""
    programs: int = 64
    """The most compiled programs: work that differs in every round would be compiled for ever."""
    program_model: int = 256 * KB
    """A client's model from which torch's products are faster than compiled loops."""
    program_sums: int = 64 * MB
    """Sums of all blocks of clients in a compiled program."""
    thread_operations: int = 2**20
    """Operations of a compiled program that are worth several threads."""
    recordings: int = 128
    """The most recordings of a compiled step on a GPU: two for each number of rows."""


DEFAULT = Limits()
