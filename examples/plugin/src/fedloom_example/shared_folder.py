"""A transport: messages of real parties as files in a folder that all of them can reach.

What resumes, waits, checks and refuses is FedLoom's `CarriedTransport`; here is only how bytes get
to a peer and its answer back. Whoever can write into the folder can speak for anybody, so this is
for parties that trust each other, on one machine or one file server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote
from uuid import uuid4

from fedloom.extend import (
    CarriedTransport,
    Client,
    Links,
    Party,
    PartyTransport,
    Positive,
    TransportOptions,
    transports,
)

PAUSE = 0.005  # seconds between two reads of the inbox


@transports.register("folder")
def over_a_folder(
    links: Links,
    run: str,
    options: TransportOptions,
    place: Annotated[str, "the folder that all parties share"],
    patience: Annotated[Positive, "seconds to wait for an answer"] = 5.0,
) -> PartyTransport:
    """Parties leave files for each other in a folder that they share."""
    carrier = SharedFolder(Path(place), links.me, patience)
    return CarriedTransport(
        links.me, run, carrier, dials=links.dials, expected=links.expected, **options
    )


class SharedFolder:
    """Carries one party's requests and answers. Each party has an inbox."""

    def __init__(self, place: Path, me: Party, patience: float = 5.0):
        self._place, self._me, self._patience = place, me, patience
        self._over = threading.Event()

    def open(self, answer: Callable[[Party, bytes], bytes]) -> None:
        self._inbox(self._me).mkdir(parents=True, exist_ok=True)
        for old in self._inbox(self._me).iterdir():  # of an earlier process: nobody waits for it
            old.unlink(missing_ok=True)
        threading.Thread(target=self._serve, args=(answer,), daemon=True).start()

    def carry(self, peer: Party, request: bytes) -> bytes:
        name = uuid4().hex
        answer = self._inbox(self._me) / f"{name}.answer"
        _write(self._inbox(peer) / f"{_name_of(self._me)}@{name}.request", request)
        until = time.monotonic() + self._patience
        while time.monotonic() < until and not self._over.wait(PAUSE):
            with suppress(FileNotFoundError):
                content = answer.read_bytes()
                answer.unlink()
                return content
        raise TimeoutError(f"no answer of {peer}")

    def close(self) -> None:
        self._over.set()

    def _serve(self, answer: Callable[[Party, bytes], bytes]) -> None:
        while not self._over.wait(PAUSE):
            for file in self._inbox(self._me).glob("*.request"):
                with suppress(FileNotFoundError):  # somebody else has taken it
                    request = file.read_bytes()
                    file.unlink()
                    source, _, name = file.stem.partition("@")
                    words = (_party_of(source), name, request, answer)
                    threading.Thread(target=self._reply, args=words, daemon=True).start()

    def _reply(
        self, source: Party, name: str, request: bytes, answer: Callable[[Party, bytes], bytes]
    ) -> None:
        with suppress(OSError):  # the peer has left
            _write(self._inbox(source) / f"{name}.answer", answer(source, request))

    def _inbox(self, party: Party) -> Path:
        return self._place / _name_of(party)


def _name_of(party: Party) -> str:
    return quote(str(party), safe="")


def _party_of(name: str) -> Party:
    silo, slash, client = unquote(name).partition("/")
    return Client(silo, client) if slash else silo


def _write(file: Path, content: bytes) -> None:
    """So that nobody reads half of it."""
    part = file.with_suffix(".part")
    part.write_bytes(content)
    part.replace(file)
