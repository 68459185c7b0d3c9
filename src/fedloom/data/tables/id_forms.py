"""Forms of an id: how it reads where something about its writing does not count, such as its case.

Two ids that differ, but not in some form, may be one person's, written in two ways.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Written = TypeVar("Written", bound=Hashable)  # a form as it is, or a keyed hash of it


@dataclass(frozen=True)
class Form:
    """`of` takes off what does not count; `condition` says what that is: "if ..."."""

    name: str
    condition: str
    of: Callable[[str], str]


def characters(one: str) -> str:
    """Compatible characters alike (NFKC: full-width digits and letters, ligatures); no blanks and
    nothing that cannot be seen (zero-width and soft ones, marks of direction)."""
    if not one.isascii():
        one = unicodedata.normalize("NFKC", one)
        one = "".join(c for c in one if unicodedata.category(c) not in ("Cf", "Cc"))
    return "".join(one.split())


def case(one: str) -> str:
    """Large and small letters alike."""
    return one.casefold()


def zeros(one: str) -> str:
    """Numbers in it without leading zeros: P000123 as P123."""
    return LEADING.sub("", one)


def point(one: str) -> str:
    """Whole numbers without the ".0" of programs that take them for fractions."""
    return POINT.sub("", one)


def signs(one: str) -> str:
    """Letters and digits only."""
    return "".join(c for c in one if c.isalnum())


def together(one: str) -> str:
    """All of these."""
    return zeros(signs(point(case(characters(one)))))


def digits(one: str) -> str:
    """Digits only, without leading zeros, if that is most of it."""
    bare = together(one)
    kept = "".join(c for c in bare if c.isdigit())
    return zeros(kept) if 2 * len(kept) >= len(bare) else bare


LEADING = re.compile(r"(?<!\d)0+(?=\d)")
POINT = re.compile(r"(?<=\d)\.0+$")
FORMS = (  # from the mildest
    Form("characters", "blanks, invisible and look-alike characters were ignored", characters),
    Form("case", "case were ignored", case),
    Form("zeros", "leading zeros were ignored", zeros),
    Form("point", "'.0' at the end were ignored", point),
    Form("signs", "only letters and digits counted", signs),
    Form("together", "all of blanks, case, leading zeros, '.0' and signs were ignored", together),
    Form("digits", "only digits counted", digits),
)


def forms_of(ids: Iterable[str], form: Form) -> list[str]:
    """Of one client's ids in some order; without those that are several ids' or empty."""
    counts = Counter(map(form.of, ids))
    return [one for one, times in counts.items() if times == 1 and one]


def once(clients: Iterable[Collection[Written]]) -> set[Written]:
    """The forms that one client of a silo has, and no other."""
    counts = Counter(one for forms in clients for one in forms)
    return {one for one, times in counts.items() if times == 1}


def in_all(silos: Iterable[Iterable[Collection[Written]]]) -> int:
    """How many forms every silo has at one client, of the forms that each client has."""
    held = [once(clients) for clients in silos]
    return len(set.intersection(*held)) if held else 0


def gains(counts: Mapping[str, int]) -> dict[str, int]:
    """{condition: how many more ids would match}, of the forms in which more do than in all milder
    ones; `counts`: {name: how many match}."""
    found: dict[str, int] = {}
    for form in FORMS:
        if counts.get(form.name, 0) > max(found.values(), default=0):
            found[form.condition] = counts[form.name]
    return found
