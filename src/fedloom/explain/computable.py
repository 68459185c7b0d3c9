"""What can be computed in a run from what is sent, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ..algorithms.shared.releasing import noisy
from ..core.topology import Client, title
from ..runs.run import Run
from .explanation import SentMessage

NAMED = 3  # clients, or silos, that are named one by one


def computable(run: Run, sent: Sequence[SentMessage]) -> Iterator[str]:
    """For algorithms whose clients release embeddings, or models that they have moved."""
    kinds = {message.kind for message in sent}
    if "embedding" in kinds:
        yield from _inverted(run)
        yield _initial(run)
    if "update" in kinds:
        yield from _single_rows(sent)
    if noisy(run.algorithm) is not None:
        yield (
            "Noise bounds what can be computed from what it is added to, as said under Privacy. It "
            "does so only where it is drawn from party.secret: in a simulation it comes from the "
            "seed, and everyone can take it off again."
        )


def _inverted(run: Run) -> Iterator[str]:
    """Whether the block of a silo can be inverted."""
    sizes = {
        silo: (width, prod(run.shapes.features[silo][0]))
        for silo, width in run.shapes.width.items()
    }
    whole = [silo for silo, (width, features) in sizes.items() if width >= features]
    if whole:
        yield (
            f"In {_some(whole)} an embedding has as many numbers as a row, or more: whoever has "
            "the block computes rows exactly, unless its layers lose something."
        )
    part = {silo: sizes[silo] for silo in sizes if silo not in whole}
    if part:
        shares = ", ".join(f"{width} of {of} in {silo}" for silo, (width, of) in _first(part))
        more = ", ..." if len(part) > NAMED else ""
        yield (
            f"An embedding has so many numbers for those of a row: {shares}{more}. Whoever has the "
            "block knows as many equations for each row, and guesses better the more there are."
        )


def _initial(run: Run) -> str:
    return (
        "Every hub has the block of its own silo, and so have its clients. Initial blocks are "
        "drawn from the seed of the run file, so all parties know them, but for silos whose hub "
        "has party.secret: without it, other hubs compute from the first embeddings what its own "
        "hub can."
    )


def _single_rows(sent: Sequence[SentMessage]) -> Iterator[str]:
    """Clients whose update is the gradient of one row."""
    rows = {
        message.source: message.shapes[0].shape[0]
        for message in sent
        if message.kind == "embedding" and message.shapes
    }
    lone = [client for client, count in rows.items() if count == 1]
    if lone:
        yield (
            f"In this round {_clients(lone)} a single row in the minibatch: from the update its "
            "hub computes that row exactly (the gradient of a first layer is a multiple of it)."
        )
    elif rows:
        yield (
            f"In this round no client has fewer than {min(rows.values())} rows in the minibatch. "
            "In one in which it has a single row, its update gives that row to its hub exactly; "
            "more rows are mixed, not hidden."
        )


def _clients(lone: Sequence[object]) -> str:
    if len(lone) > NAMED:
        return f"{len(lone)} clients have"
    names = ", ".join(title(client) for client in lone if isinstance(client, Client))
    return f"{names} {'has' if len(lone) == 1 else 'have'}"


def _some(silos: Sequence[str]) -> str:
    if len(silos) > NAMED:
        return f"{len(silos)} silos ({', '.join(silos[:NAMED])}, ...)"
    return f"silo{'s' if len(silos) > 1 else ''} {', '.join(silos)}"


def _first(sizes: Mapping[str, tuple[int, int]]) -> list[tuple[str, tuple[int, int]]]:
    return list(sizes.items())[:NAMED]
