"""The common rows: ids that every silo has exactly once; and which of them are for testing."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError
from ...core.rng import Ints
from .columns import as_text
from .files import Sheet
from .id_forms import FORMS, count_in_all, extra_matches, forms_of
from .id_overlap import Overlap
from .schema import Sheets, silos_with

RowNumbers = dict[str, dict[str, Ints]]  # {silo: {client: numbers of rows in its file}}
Mask = npt.NDArray[np.bool_]

SPLIT = b"fedloom test split\n"
SHOWN = 5  # how many ids an error lists where it may


def refuse_duplicates(silo: str, clients: Mapping[str, Sheet], show: bool) -> None:
    """Refuse an id that is twice in a file, or at two clients of a silo."""
    holders: dict[str, str] = {}
    shared: dict[str, set[str]] = {}
    for client, sheet in clients.items():
        ids = sheet.ids.tolist()
        if len(set(ids)) < len(ids):
            counts = {id: n for id, n in Counter(ids).items() if n > 1}
            raise DataError(
                f"{sheet.where}: {len(counts)} ids occur more than once in {sheet.path.name}, in "
                f"{sum(counts.values())} rows{_shown(counts, show)}; keep one row of each"
            )
        for id in holders.keys() & set(ids):
            shared.setdefault(id, {holders[id]}).add(client)
        holders.update(dict.fromkeys(ids, client))
    if shared:
        among = set().union(*shared.values())
        names = " and ".join(name for name in clients if name in among)
        raise DataError(
            f"silo {silo}: {len(shared)} ids are held by more than one client ({names})"
            f"{_shown(shared, show)}; keep each at one of them"
        )


def _shown(ids: Collection[str], show: bool) -> str:
    more = ", ..." if len(ids) > SHOWN else ""
    return f": {', '.join(sorted(ids)[:SHOWN])}{more}" if show else ""


@dataclass(frozen=True)
class CommonRows:
    """The ids that every silo has, in order. `rows`: the rows of each file that have one of them;
    `places`: for each of these rows, the position of its id in `ids`."""

    ids: tuple[str, ...] = field(repr=False)
    rows: RowNumbers
    places: RowNumbers

    def select(self, pick: Mask) -> RowNumbers:
        """The rows of some of the ids."""
        return {
            silo: {name: rows[pick[self.places[silo][name]]] for name, rows in clients.items()}
            for silo, clients in self.rows.items()
        }


def keep_common(sheets: Sheets, rows: RowNumbers) -> tuple[CommonRows, Overlap, list[str]]:
    """Of these rows, those whose ids every silo has; how well ids match; and notes on the rows that
    are dropped."""
    ids = {
        silo: {name: sheet.ids[rows[silo][name]].tolist() for name, sheet in clients.items()}
        for silo, clients in sheets.items()
    }
    ids_of = {silo: set().union(*clients.values()) for silo, clients in ids.items()}
    common = sorted(set.intersection(*ids_of.values()))
    place = {id: k for k, id in enumerate(common)}
    used: RowNumbers = {}
    places: RowNumbers = {}
    others: RowNumbers = {}
    for silo, clients in ids.items():
        used[silo], places[silo], others[silo] = {}, {}, {}
        for name, own_ids in clients.items():
            at = np.array([place.get(id, -1) for id in own_ids], dtype=np.int64)
            used[silo][name], places[silo][name] = rows[silo][name][at >= 0], at[at >= 0]
            others[silo][name] = rows[silo][name][at < 0]
    counts = {
        silo: {name: (len(used[silo][name]), len(rows[silo][name])) for name in clients}
        for silo, clients in sheets.items()
    }
    overlap = Overlap(counts, _more(sheets, others))
    if not common:
        kinds = "; ".join(f"{silo} has {_id_style(own_ids)}" for silo, own_ids in ids_of.items())
        advice = overlap.advice or "ids must be written alike in all files"
        raise DataError(f"no id is in every silo: {kinds}; {advice}")
    notes = [
        f"{silo}: {len(own) - len(common)} of {len(own)} rows dropped: their ids are not in "
        "every silo"
        for silo, own in ids_of.items()
        if len(own) > len(common)
    ]
    notes += [overlap.advice] if overlap.advice else []
    return CommonRows(tuple(common), used, places), overlap, notes


def _more(sheets: Sheets, others: RowNumbers) -> dict[str, int]:
    """How many more rows would match in each form of the ids."""
    if not all(any(map(len, clients.values())) for clients in others.values()):
        return {}  # all rows of a silo match
    return extra_matches(
        {
            form.name: count_in_all(
                [
                    forms_of(sheet.plain[others[silo][name]].tolist(), form)
                    for name, sheet in clients.items()
                ]
                for silo, clients in sheets.items()
            )
            for form in FORMS
        }
    )


def _id_style(ids: Collection[str]) -> str:
    """How ids are spelled, without showing one."""
    if not ids:
        return "no rows"
    kind = "whole numbers" if all(map(str.isdigit, ids)) else "text"
    if kind != "text" and any(id.startswith("0") and id != "0" for id in ids):
        kind = "digits with leading zeros"
    low, high = min(map(len, ids)), max(map(len, ids))
    return f"{len(ids)} ids, {kind} of {low if low == high else f'{low} to {high}'} characters"


def split_by_hash(ids: Iterable[str], share: float) -> Mask:
    """Which ids are for testing: by a hash of the id, so that all silos choose the same."""
    below = int(share * 2**64)
    digests = (hashlib.sha256(SPLIT + id.encode()).digest() for id in ids)
    return np.array([int.from_bytes(d[:8], "big") < below for d in digests], dtype=bool)


def split_by_column(sheets: Sheets, common: CommonRows, column: str) -> Mask:
    """Which ids are for testing: by a column of 0 and 1. Silos must agree."""
    answers: dict[str, Mask] = {}
    for silo in silos_with(sheets, column, "test"):
        answers[silo] = np.zeros(len(common.ids), dtype=bool)
        for name, sheet in sheets[silo].items():
            words = as_text(sheet.columns[column].values)
            rows = common.rows[silo][name]
            flags = np.array([*map(_flag, words.names), -1])[words.codes[rows]]
            bad = rows[flags < 0]
            if len(bad):
                raise DataError(
                    f"{sheet.where}: {len(bad)} cells of the test column {column!r} are not 0, 1, "
                    f"true or false (the first in row {bad[0] + 1} of {sheet.path.name})"
                )
            answers[silo][common.places[silo][name]] = flags == 1
    first, *others = answers
    for other in others:
        differ = int((answers[first] != answers[other]).sum())
        if differ:
            raise DataError(
                f"test column {column!r}: silos {first} and {other} disagree on {differ} ids"
            )
    return answers[first]


def _flag(word: str) -> int:
    return {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}.get(word.lower(), -1)
