"""Forms of an id: the id without some detail of its spelling, such as its case.

Two different ids with the same form may belong to one person, spelled in two ways.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Written = TypeVar("Written", bound=Hashable)  # a form, or its keyed hash


@dataclass(frozen=True)
class IdForm:
    """`of` removes a detail; `condition` says which one, as the end of "they would match if
    ..."."""

    name: str
    condition: str
    of: Callable[[str], str]


def characters(id: str) -> str:
    """Compatible characters are equal (NFKC: full-width digits and letters, ligatures). Without
    blanks and invisible characters (zero-width, soft hyphens, marks of direction)."""
    if not id.isascii():
        id = unicodedata.normalize("NFKC", id)
        id = "".join(c for c in id if unicodedata.category(c) not in ("Cf", "Cc"))
    return "".join(id.split())


def case(id: str) -> str:
    """Upper and lower case are equal."""
    return id.casefold()


def zeros(id: str) -> str:
    """Without leading zeros of numbers: P000123 is P123."""
    return LEADING.sub("", id)


def point(id: str) -> str:
    """Without the ".0" of programs that take whole numbers for fractions."""
    return POINT.sub("", id)


def signs(id: str) -> str:
    """Letters and digits only."""
    return "".join(c for c in id if c.isalnum())


def together(id: str) -> str:
    """All of the above."""
    return zeros(signs(point(case(characters(id)))))


def digits(id: str) -> str:
    """Digits only, without leading zeros, if at least half of the id is digits."""
    compact = together(id)
    numeric = "".join(c for c in compact if c.isdigit())
    return zeros(numeric) if 2 * len(numeric) >= len(compact) else compact


LEADING = re.compile(r"(?<!\d)0+(?=\d)")
POINT = re.compile(r"(?<=\d)\.0+$")
FORMS = (  # from the mildest
    IdForm("characters", "blanks, invisible and look-alike characters were ignored", characters),
    IdForm("case", "case were ignored", case),
    IdForm("zeros", "leading zeros were ignored", zeros),
    IdForm("point", "'.0' at the end were ignored", point),
    IdForm("signs", "only letters and digits counted", signs),
    IdForm("together", "all of blanks, case, leading zeros, '.0' and signs were ignored", together),
    IdForm("digits", "only digits counted", digits),
)


def forms_of(ids: Iterable[str], form: IdForm) -> list[str]:
    """The forms of one client's ids, without empty ones and those of several ids."""
    counts = Counter(map(form.of, ids))
    return [written for written, times in counts.items() if times == 1 and written]


def unique_forms(clients: Iterable[Collection[Written]]) -> set[Written]:
    """The forms that exactly one client of a silo has."""
    counts = Counter(written for forms in clients for written in forms)
    return {written for written, times in counts.items() if times == 1}


def count_in_all(silos: Iterable[Iterable[Collection[Written]]]) -> int:
    """How many forms every silo has at exactly one client."""
    by_silo = [unique_forms(clients) for clients in silos]
    return len(set.intersection(*by_silo)) if by_silo else 0


def extra_matches(counts: Mapping[str, int]) -> dict[str, int]:
    """{condition: how many more ids would match}, for forms in which more ids match than in all
    milder ones. `counts`: {name of a form: how many match}."""
    extra: dict[str, int] = {}
    for form in FORMS:
        if counts.get(form.name, 0) > max(extra.values(), default=0):
            extra[form.condition] = counts[form.name]
    return extra
