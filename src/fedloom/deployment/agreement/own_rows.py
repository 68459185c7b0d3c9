"""A party's own rows on its own disk: safetensors, ids not included.

A client has the canonical numbers of its rows, their features and, where it has them, labels; a
hub has the numbers of its clients' rows; the server has nothing. Where rows come from tables, a
file beside them says how the silo's columns become numbers. Digests over whole files find damage.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from ...core import seal
from ...core.errors import DataError
from ...core.topology import Client, Party, known_to, title
from ...data.placement import View
from ...data.tables.prepare import Preparation
from .agreement import Agreement
from .shared_facts import SharedFacts

CURE = "restore it from a backup, or align again, all together (fedloom align)"


def write_rows(path: Path, view: View) -> None:
    """What one party may know."""
    tensors = {f"rows/{client}": rows for client, rows in view.rows.items()}
    for client, x in view.x.items():
        tensors[f"x/{client}"] = x
        y = view.y[client]
        if y is not None:
            tensors[f"y/{client}"] = y
    seal.write_tensors(path, tensors, {})


def write_preparation(rows: Path, preparation: Preparation) -> None:
    """How the columns of a party's silo become numbers, beside its rows."""
    seal.write_json(preparation_beside(rows), json.loads(preparation.to_json()))


def read_preparation(rows: Path) -> Preparation:
    path = preparation_beside(rows)
    text = json.dumps(seal.read_json(path, CURE))
    try:
        return Preparation.from_json(text)
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from None


def preparation_beside(rows: Path) -> Path:
    """Each party has a file of its own; parties may share a folder."""
    return rows.with_suffix(".preparation.json")


def read_rows(path: Path, party: Party, agreement: Agreement) -> View:
    """And back, checked against what was agreed."""
    tensors, _ = seal.read_tensors(path, CURE)
    topology = agreement.topology
    known = known_to(topology, [party])
    rows: dict[Client, Tensor] = {}
    x: dict[Client, Tensor] = {}
    y: dict[Client, Tensor | None] = {}
    for silo, names in known.items():
        for client in (Client(silo, name) for name in names):
            rows[client] = _tensor(tensors, f"rows/{client}", path)
            _check_numbers(rows[client], client, agreement, path)
            if client == party:
                x[client] = _tensor(tensors, f"x/{client}", path)
                y[client] = tensors.get(f"y/{client}")
                _check_shape(x[client], y[client], client, len(rows[client]), agreement, path)
    sizes = agreement.size, agreement.facts.validation
    return View(topology.silos, topology.server, known, sizes[0], rows, x, y, sizes[1])


def _tensor(tensors: dict[str, Tensor], name: str, path: Path) -> Tensor:
    if name not in tensors:
        raise DataError(f"{path}: {name} is missing")
    return tensors[name]


def _check_numbers(rows: Tensor, client: Client, agreement: Agreement, path: Path) -> None:
    size = agreement.size + agreement.facts.validation
    if rows.dtype != torch.int64 or rows.ndim != 1 or len(rows.unique()) != len(rows):
        raise DataError(f"{path}: the rows of {title(client)} are not different whole numbers")
    if bool(((rows < 0) | (rows >= size)).any()):
        raise DataError(f"{path}: {title(client)} has rows beyond the {size} that are common")


def _check_shape(
    x: Tensor, y: Tensor | None, client: Client, rows: int, agreement: Agreement, path: Path
) -> None:
    facts, who = agreement.facts, f"{path}: {title(client)}"
    shape, dtype = facts.features[client.silo]
    if x.shape != (rows, *shape) or x.dtype != dtype:
        raise DataError(
            f"{who} has {rows} rows, and features of shape {tuple(x.shape)}, {x.dtype}; the "
            f"agreement has {shape} a row, {dtype}"
        )
    if (y is not None) != (client.silo in facts.labelled):
        raise DataError(f"{who} has {'' if y is not None else 'no '}labels, unlike the agreement")
    if y is not None:
        _check_labels(y, rows, facts, who)
    for what, values in (("features", x), ("labels", y)):
        if values is not None and values.is_floating_point() and not values.isfinite().all():
            raise DataError(f"{who}: NaN or infinity in the {what}")


def _check_labels(y: Tensor, rows: int, facts: SharedFacts, who: str) -> None:
    shape, dtype = facts.label
    if y.shape != (rows, *shape) or y.dtype != dtype:
        raise DataError(f"{who} has labels of shape {tuple(y.shape)}, {y.dtype}")
    top = {"classes": facts.outputs - 1, "binary": 1}.get(facts.goal)
    if top is not None and bool(((y < 0) | (y > top)).any()):
        raise DataError(f"{who} has labels beyond the {top + 1} classes that were agreed on")
