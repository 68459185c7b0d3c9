"""Kinds of message, and the message itself.

Every message has a kind, which says what it carries. Kinds are module constants of the algorithm
that uses them. A kind of rows names the shape of a row by a word (RowWord) that the task resolves,
so that a hub can check what it receives, and knows the shape of missing rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..core.errors import SettingError
from ..core.payload import RowWord
from ..core.topology import Party

Tier = Literal["bottom", "top"]
Direction = Literal["down", "up", "across"]

ABOUT: dict[str, str] = {}  # name of every kind -> what it carries, as text


@dataclass(frozen=True)
class Kind:
    """What a message carries. `row`: the shape of a row, for payloads with one entry a row.
    `reveals`: what a curious receiver can compute from it, where it is not protected."""

    name: str
    about: str
    row: RowWord | None = None
    reveals: str = ""

    def __post_init__(self) -> None:
        if self.name == "start":
            raise SettingError("a kind cannot be called 'start': that is the start of a round")
        ABOUT.setdefault(self.name, self.about)

    def __str__(self) -> str:
        return self.name


class Key(NamedTuple):
    """The position of a message in the run. Messages of a link are sent in this order."""

    round: int
    move: int

    def __str__(self) -> str:
        return "at the end" if self == AT_THE_END else f"round {self.round}"


class Message(NamedTuple):
    """One message. (key, kind, source, to) is sent once. `receipt`: the last move that the sender
    (a hub) accepted from the receiver (its client)."""

    key: Key
    kind: str
    source: Party
    to: Party
    payload: Any
    receipt: Key | None = None


READY = Kind("ready", "a client is warm; the first round may begin")
AT_THE_START = Key(-1, 0)
PACE = Kind("pace", "what was sent in the round has been heard; carries nothing")
END = Kind("end", "the run is over; carries the last receipt")
AT_THE_END = Key(1 << 62, 0)
