"""Who may talk to us: certificates by party, in a file that can be edited while we run.

    "bank/north" = ["3f0c..."]      # SHA-256 of the certificate; two while one is being replaced
    insurer = ["77ab..."]

A party that is not listed, or whose certificate is not, is refused, and cut off if it is connected.
A list that cannot be read allows nobody.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import DataError, RefusedError
from ...core.files import SHARED, write_text
from ...core.toml import dumps
from ...core.topology import Party, title
from .certificates import Certificate


def read_list(path: Path) -> dict[str, list[str]]:
    """{party: fingerprints}; a file that is not there is an empty list."""
    if not path.exists():
        return {}
    try:
        listed = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise DataError(f"{path} is no allow-list ({problem})") from None
    for party, prints in listed.items():
        if not isinstance(prints, list) or not all(isinstance(text, str) for text in prints):
            raise DataError(f"{path}: {party}: a list of fingerprints is expected")
    return listed


def write_list(path: Path, allowed: dict[str, list[str]]) -> None:
    listed = {party: prints for party, prints in allowed.items() if prints}
    write_text(path, dumps(listed), SHARED)


@dataclass
class Gate:
    """Decides whether a certificate may come in. `cas`: of each silo (and the server), by name."""

    allow: Path
    cas: dict[str, Certificate]
    _seen: Any = None
    _allowed: dict[str, list[str]] = field(default_factory=dict)

    def admit(self, pem: bytes) -> Party:
        """Whose certificate it is; RefusedError says why it may not come in."""
        certificate = Certificate.parse(pem)
        party = certificate.party
        if party is None:
            raise RefusedError("a certificate that names no party")
        silo = party if isinstance(party, str) else party.silo
        if silo not in self.cas or not certificate.is_from(self.cas[silo]):
            raise RefusedError(f"{title(party)}: its certificate is not from the CA of {silo}")
        if not certificate.is_current():
            raise RefusedError(f"{title(party)}: its certificate is not valid today")
        if certificate.fingerprint not in self._list().get(str(party), ()):
            raise RefusedError(f"{title(party)}: its certificate is not on the allow-list")
        return party

    def _list(self) -> dict[str, list[str]]:
        try:
            stat = self.allow.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except OSError:
            seen = None
        if seen != self._seen or seen is None:
            try:
                self._allowed = read_list(self.allow)
            except DataError:
                self._allowed = {}
            self._seen = seen
        return self._allowed
