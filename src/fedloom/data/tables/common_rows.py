"""Which rows are used: ids that every silo has, each once; and which of them are for testing."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError
from .columns import Ints, as_words
from .files import Sheet
from .id_forms import FORMS, forms_of, gains, in_all
from .id_overlap import Overlap
from .schema import Sheets, silos_with

Rows = dict[str, dict[str, Ints]]  # {silo: {client: the numbers of the rows used}}
Mask = npt.NDArray[np.bool_]

SPLIT = b"fedloom test split\n"
SHOWN = 5  # how many ids an error lists where it may


def refuse_duplicates(silo: str, clients: Mapping[str, Sheet], show: bool) -> None:
    """Each id once in a file, and at one client of a silo."""
    holders: dict[str, str] = {}
    shared: dict[str, set[str]] = {}
    for client, sheet in clients.items():
        ids = sheet.ids.tolist()
        if len(set(ids)) < len(ids):
            counts = {one: n for one, n in Counter(ids).items() if n > 1}
            raise DataError(
                f"{sheet.where}: {len(counts)} ids occur more than once in {sheet.path.name}, in "
                f"{sum(counts.values())} rows{_shown(counts, show)}; keep one row of each"
            )
        for one in holders.keys() & set(ids):
            shared.setdefault(one, {holders[one]}).add(client)
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
class Common:
    """Ids that every silo has, in order; which rows of each file have them, and for each of these
    rows the place of its id."""

    ids: tuple[str, ...] = field(repr=False)
    rows: Rows
    places: Rows

    def part(self, pick: Mask) -> Rows:
        """The rows of some of the ids."""
        return {
            silo: {name: mine[pick[self.places[silo][name]]] for name, mine in held.items()}
            for silo, held in self.rows.items()
        }


def keep_common(sheets: Sheets, rows: Rows) -> tuple[Common, Overlap, list[str]]:
    """Of the rows kept so far, those whose ids every silo has, how well they match, and notes on
    the others."""
    ids = {
        silo: {name: sheet.ids[rows[silo][name]].tolist() for name, sheet in clients.items()}
        for silo, clients in sheets.items()
    }
    held = {silo: set().union(*clients.values()) for silo, clients in ids.items()}
    common = sorted(set.intersection(*held.values()))
    place = {one: k for k, one in enumerate(common)}
    kept: Rows = {}
    places: Rows = {}
    others: Rows = {}
    for silo, clients in ids.items():
        kept[silo], places[silo], others[silo] = {}, {}, {}
        for name, mine in clients.items():
            at = np.array([place.get(one, -1) for one in mine], dtype=np.int64)
            kept[silo][name], places[silo][name] = rows[silo][name][at >= 0], at[at >= 0]
            others[silo][name] = rows[silo][name][at < 0]
    counts = {
        silo: {name: (len(kept[silo][name]), len(rows[silo][name])) for name in clients}
        for silo, clients in sheets.items()
    }
    overlap = Overlap(counts, _more(sheets, others))
    if not common:
        kinds = "; ".join(f"{silo} has {_look(mine)}" for silo, mine in held.items())
        advice = overlap.advice or "ids must be written alike in all files"
        raise DataError(f"no id is in every silo: {kinds}; {advice}")
    notes = [
        f"{silo}: {len(mine) - len(common)} of {len(mine)} rows dropped: their ids are not in "
        "every silo"
        for silo, mine in held.items()
        if len(mine) > len(common)
    ]
    notes += [overlap.advice] if overlap.advice else []
    return Common(tuple(common), kept, places), overlap, notes


def _more(sheets: Sheets, others: Rows) -> dict[str, int]:
    """How many of the rows that do not match would, if ids were looked at less closely."""
    if not all(any(map(len, clients.values())) for clients in others.values()):
        return {}  # a silo has none left
    return gains(
        {
            form.name: in_all(
                [
                    forms_of(sheet.plain[others[silo][name]].tolist(), form)
                    for name, sheet in clients.items()
                ]
                for silo, clients in sheets.items()
            )
            for form in FORMS
        }
    )


def _look(ids: Collection[str]) -> str:
    """How ids are written, without showing one."""
    if not ids:
        return "no rows"
    kind = "whole numbers" if all(map(str.isdigit, ids)) else "text"
    if kind != "text" and any(one.startswith("0") and one != "0" for one in ids):
        kind = "digits with leading zeros"
    low, high = min(map(len, ids)), max(map(len, ids))
    return f"{len(ids)} ids, {kind} of {low if low == high else f'{low} to {high}'} characters"


def drawn(ids: Iterable[str], share: float) -> Mask:
    """Which ids are for testing: by a hash of the id, so that all silos draw the same."""
    below = int(share * 2**64)
    digests = (hashlib.sha256(SPLIT + one.encode()).digest() for one in ids)
    return np.array([int.from_bytes(d[:8], "big") < below for d in digests], dtype=bool)


def told(sheets: Sheets, common: Common, column: str) -> Mask:
    """Which ids are for testing: by a column of 0 and 1, in which silos must agree."""
    answers: dict[str, Mask] = {}
    for silo in silos_with(sheets, column, "test"):
        answers[silo] = np.zeros(len(common.ids), dtype=bool)
        for name, sheet in sheets[silo].items():
            words = as_words(sheet.columns[column].values)
            mine = common.rows[silo][name]
            flags = np.array([*map(_flag, words.names), -1])[words.codes[mine]]
            bad = mine[flags < 0]
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
