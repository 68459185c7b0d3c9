"""The party file: who am I, where are my rows, keys and peers. The run file is shared; this is not.

[party]
name = "bank/north"                   # SILO: its hub; SILO/CLIENT: a client; server
agreement = "agreement.json"
rows = "rows.safetensors"
folder = "out"

[keys]
certificate = "bank-north.pem"
key = "bank-north.key"
allow = "allow.toml"

[peers.bank]
ca = "bank-ca.pem"
address = "hub.bank.example:7000"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ..config.convert import table
from ..core.errors import SettingError
from ..core.files import check_private
from ..core.settings import BadKey, at_least, fields_of
from ..core.topology import Client, Party
from ..engines.party.timeouts import Waits
from ..fabric.permits import Bounds
from ..transports.links.party import Timing
from .keys.certificates import party_of

FILES = {"agreement", "rows", "folder", "secret", "table", "salt", "ca"}
FILES |= {"certificate", "key", "allow"}


@dataclass(frozen=True)
class PartySection:
    """[party]"""

    name: Annotated[str, "SILO (its hub), SILO/CLIENT or server"]
    agreement: Annotated[str, "what all parties know"]
    rows: Annotated[str, "this party's own rows"]
    folder: Annotated[str, "where it writes"]
    transport: Annotated[str, "what carries its messages: a registered name"] = "grpc"
    keep: Annotated[int, at_least(2), "rounds that it can go back to, if another party has to"] = 10
    secret: Annotated[str | None, "file of at least 32 bytes that noise is drawn from"] = None
    table: Annotated[str | None, "a client's own CSV or Parquet file, for `fedloom align`"] = None
    salt: Annotated[str | None, "a secret text that all clients share: ids are hashed with it"] = (
        None
    )


@dataclass(frozen=True)
class KeysSection:
    """[keys]"""

    certificate: Annotated[str, "this party's certificate"]
    key: Annotated[str, "and its private key"]
    allow: Annotated[str, "whose certificates are believed: of those who come, and who is dialled"]


@dataclass(frozen=True)
class PeerSection:
    """[peers.NAME]: a hub or the server; also one's own silo, whose clients come in."""

    ca: Annotated[str, "its organisation's CA"]
    address: Annotated[str | None, "host:port, where this party dials it"] = None


@dataclass(frozen=True)
class WaitsSection:
    """[waits]: seconds."""

    start: Annotated[float, "how long everyone has to come, before the first round"] = 300.0
    patience: Annotated[float, "how long a hub waits for a client before the run ends"] = 60.0
    on_missing_client: Annotated[
        Literal["wait", "skip"], "wait for it, or go on without its rows until it is back"
    ] = "wait"
    deadline: Annotated[float, "with skip: how long a client has for an answer"] = 10.0
    quorum: Annotated[int, "with skip: a round of fewer clients waits on, up to patience"] = 1
    beat: Annotated[float, "between signs of life"] = 1.0
    silence: Annotated[float, "without any, a connection is given up and made anew"] = 5.0
    linger: Annotated[float, "stay so long for those who have not heard everything"] = 10.0

    @property
    def waits(self) -> Waits:
        if self.on_missing_client == "wait":
            return Waits(None, self.patience)
        return Waits(min(self.deadline, self.patience), self.patience, self.quorum)

    @property
    def timing(self) -> Timing:
        absent = self.silence if self.on_missing_client == "skip" else None
        beat = min(self.beat, self.patience / 4)
        return Timing(beat, self.silence, self.linger, absent)


@dataclass(frozen=True)
class LimitsSection:
    """[limits]: what is refused, coming or going."""

    largest: Annotated[float, "numbers beyond this, either way"] = 1e6
    norms: Annotated[
        dict[str, float], "kind -> the largest norm of a message: the root of its sum of squares"
    ] = field(default_factory=dict)
    frame: Annotated[int, "messages of more bytes"] = 1 << 30

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.largest, self.norms)


@dataclass(frozen=True)
class PartyFile:
    """A party file, checked; paths are absolute."""

    party: PartySection
    keys: KeysSection
    peers: dict[str, PeerSection]
    listen: Annotated[str | None, "host:port; of hubs and the server"] = None
    metrics: Annotated[str | None, "host:port, where Prometheus may ask"] = None
    transport: Annotated[dict[str, Any], "settings of its transport, where it has some"] = field(
        default_factory=dict
    )
    waits: WaitsSection = field(default_factory=WaitsSection)
    limits: LimitsSection = field(default_factory=LimitsSection)

    @property
    def me(self) -> Party:
        return party_of(self.party.name)

    def refuse_open_secrets(self) -> None:
        """SettingError where others can read a key, a secret or a salt of this party."""
        named = {"key": self.keys.key, "secret": self.party.secret, "salt": self.party.salt}
        for what, path in named.items():
            if path is not None and Path(path).exists():
                check_private(Path(path), what)

    @staticmethod
    def read(path: Path) -> PartyFile:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise SettingError(f"{path}: cannot be read ({problem})") from None
        try:
            party_file = PartyFile(**table(fields_of(PartyFile), raw, ()))
        except BadKey as problem:
            where = ".".join(problem.path)
            raise SettingError(f"{path}: {where}{': ' if where else ''}{problem}") from None
        if not isinstance(party_file.me, Client) and party_file.listen is None:
            raise SettingError(f"{path}: a hub needs `listen`, host:port")
        return _absolute(party_file, path.parent.resolve())


def _absolute(value: Any, base: Path) -> Any:
    """With files named relative to the party file."""
    if isinstance(value, dict):
        return {name: _absolute(nested, base) for name, nested in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for entry in fields(value):
        nested = getattr(value, entry.name)
        if entry.name in FILES and isinstance(nested, str):
            changed[entry.name] = str(base / nested)
        else:
            changed[entry.name] = _absolute(nested, base)
    return replace(value, **changed)
