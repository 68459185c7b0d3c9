"""Variants of ids that do not match: how many more would if, say, upper and lower case were alike.
Organisations find out without showing an id.

A client hashes the forms (data/tables/id_forms.py) of its ids that do not match. Each form has its
own key, so that a form's hash cannot be compared with an id's. Hashes are shortened and sorted, so
that none is tied to a row. Hubs keep those that one of their clients has, and count those that
every silo has.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.topology import Client
from ...data.tables.id_forms import FORMS, count_in_all, extra_matches, forms_of, unique_forms
from ...data.tables.id_overlap import Overlap

SHORT = 8  # bytes: chance matches among a million rows are one in many millions
Variants = Mapping[str, Tensor]  # {name of a form: [forms, SHORT]}

BLANK: Variants = {form.name: torch.zeros(1, SHORT, dtype=torch.uint8) for form in FORMS}


def variants_of(ids: Sequence[str], salt: str) -> dict[str, Tensor]:
    """Of a client's ids that do not match."""
    hashes = {}
    for form in FORMS:
        key = hmac.digest(salt.encode(), b"fedloom id form\n" + form.name.encode(), "sha256")
        hashed = (hmac.digest(key, text.encode(), "sha256")[:SHORT] for text in forms_of(ids, form))
        hashes[form.name] = _stacked(sorted(hashed))
    return hashes


def of_silo(clients: Sequence[Variants]) -> dict[str, Tensor]:
    """Those that one client has."""
    return {
        form.name: _stacked(
            sorted(unique_forms(map(_split, (variants[form.name] for variants in clients))))
        )
        for form in FORMS
    }


def more_of(silos: Sequence[Variants]) -> dict[str, int]:
    """{condition: how many more ids would match}."""
    return extra_matches(
        {
            form.name: count_in_all([_split(variants[form.name])] for variants in silos)
            for form in FORMS
        }
    )


def overlap_at(
    silos: Sequence[str],
    own_rows: Mapping[Client, tuple[Tensor, Tensor]],
    others: Mapping[str, int],
    more: Mapping[str, int],
) -> Overlap:
    """At a hub: which rows of its clients are common, and how many the other silos have."""
    own = {client.name: (int(flags.sum()), len(flags)) for client, (_, flags) in own_rows.items()}
    common = sum(count for count, _ in own.values())
    return Overlap(
        {j: {"all": (common, others[j])} if j in others else own for j in silos},
        more,
    )


def _split(hashes: Tensor) -> list[bytes]:
    flat = hashes.numpy().tobytes()
    return [flat[at : at + SHORT] for at in range(0, len(flat), SHORT)]


def _stacked(hashes: Sequence[bytes]) -> Tensor:
    flat = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, SHORT)
    return torch.from_numpy(flat.copy())
