"""Before a party takes part: its files, its certificates, its peers, their clocks, one by one."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from ...config.runfile import RunFile
from ...core.errors import FedLoomError
from ...core.topology import Client, title
from ..connect import GRPC, peers
from ..keys.allow_list import read_list
from ..keys.certificates import SKEW, Certificate, host_name
from ..party_file import PartyFile
from .host import Host

SOON = 14  # days
SECONDS = 5.0
NEAR = 2.0  # seconds between clocks that do no harm


class Finding(NamedTuple):
    """One check. `good` None: worth knowing, no reason to stay away."""

    what: str
    good: bool | None
    message: str


def preflight(file: RunFile, own: PartyFile) -> Iterator[Finding]:
    """The checks of a party before it takes part; nothing is written, and nobody is disturbed."""
    try:
        host = Host(file, own, lambda line: None)
    except FedLoomError as problem:
        yield Finding("agreement", False, str(problem))
        return
    yield Finding("fingerprint", True, host.run)
    yield from _secret(host)
    try:
        view = host.rows()
        count = sum(len(rows) for rows in view.rows.values())
        yield Finding("rows", True, f"{count} of {view.size} common rows, as agreed on")
    except FedLoomError as problem:
        yield Finding("rows", False, str(problem))
    yield _private_files(host)
    yield from _certificates(host)
    yield _allowed(host)
    if own.party.transport != GRPC:
        message = (
            f"{own.party.transport} is a transport of its own: peers and clocks are not checked"
        )
        yield Finding("peers", None, message)
        return
    for peer in peers(host.agreement.topology, host.me)[0]:
        reached = _reached(host, str(peer))
        yield reached
        if reached.good:
            yield _clock(host, str(peer))


def _secret(host: Host) -> Iterator[Finding]:
    """Whether noise is drawn from a secret."""
    try:
        if host.secrets() is not None:
            yield Finding("secret", True, f"{host.own.party.secret}")
    except FedLoomError as problem:
        yield Finding("secret", False, str(problem))


def _private_files(host: Host) -> Finding:
    try:
        host.own.refuse_open_secrets()
    except FedLoomError as problem:
        return Finding("private files", False, str(problem))
    return Finding("private files", True, "key, secret and salt are this party's alone")


def _certificates(host: Host) -> Iterator[Finding]:
    me, keys = host.me, host.own.keys
    try:
        certificate = Certificate.read(Path(keys.certificate))
        ca = host.links.ca(me.silo if isinstance(me, Client) else me)
    except FedLoomError as problem:
        yield Finding("certificate", False, str(problem))
        return
    days = (certificate.expires - datetime.now(UTC)).days
    good: bool | None = certificate.is_current() and (None if days < SOON else True)
    yield Finding("certificate", good, f"{certificate.name}, {days} days left")
    if certificate.party != me:
        yield Finding("certificate", False, f"it is of {certificate.name}, not of {title(me)}")
    if not certificate.is_from(ca):
        yield Finding("certificate", False, "it is not from this organisation's CA")
    try:
        ssl.create_default_context().load_cert_chain(keys.certificate, keys.key)
    except (ssl.SSLError, OSError) as problem:
        yield Finding("key", False, f"it does not belong to the certificate ({problem})")


def _allowed(host: Host) -> Finding:
    """Whether everyone who will come or be dialled is on the list."""
    try:
        listed = read_list(Path(host.own.keys.allow))
    except FedLoomError as problem:
        return Finding("allow-list", False, str(problem))
    expected = [peer for both in peers(host.agreement.topology, host.me) for peer in both]
    lacking = [title(peer) for peer in expected if not listed.get(str(peer))]
    if lacking:
        return Finding("allow-list", False, f"not on it: {', '.join(lacking)}")
    return Finding("allow-list", True, f"all {len(expected)} peers are on it")


def _reached(host: Host, peer: str) -> Finding:
    """Whether a peer is there, and is who it should be."""
    what, keys = f"peer {peer}", host.own.keys
    try:
        address = host.links.address(peer)
        context = ssl.create_default_context(cadata=address.ca.decode())
        context.load_cert_chain(keys.certificate, keys.key)
        context.set_alpn_protocols(["h2"])
        name, _, port = address.target.rpartition(":")
        with (
            socket.create_connection((name.strip("[]"), int(port)), SECONDS) as raw,
            context.wrap_socket(raw, server_hostname=host_name(peer)) as secured,
        ):
            if not secured.recv(1):  # in TLS 1.3, a server that does not want us hangs up only now
                return Finding(what, False, "it does not know us: it hung up")
            return Finding(what, True, f"{address.target}: it is {title(peer)}")
    except ssl.SSLError as problem:
        why = getattr(problem, "verify_message", None) or problem.reason
        return Finding(what, False, f"it is somebody else, or does not know us ({why})")
    except OSError as problem:
        return Finding(what, False, f"not reached ({problem.strerror or problem})")
    except (FedLoomError, ValueError) as problem:
        return Finding(what, False, str(problem))


def _clock(host: Host, peer: str) -> Finding:
    """Whether a peer's clock is near ours: a certificate is valid by the clock of who reads it."""
    what = f"clock of {peer}"
    try:
        own = host.links.identity
        ahead, unsure = host.links.clock_of(peer, SECONDS)
    except (FedLoomError, ConnectionError) as problem:
        return Finding(what, False, f"it does not tell the time: {problem}")
    apart = max(0.0, abs(ahead) - unsure)
    difference = f"{apart:.1f} s {'ahead of' if ahead > 0 else 'behind'} ours"
    if apart > SKEW.total_seconds():
        return Finding(what, False, f"{difference}: one of us will refuse new certificates")
    if not Certificate.parse(own.certificate).is_current(datetime.now(UTC) + timedelta(0, ahead)):
        return Finding(what, False, f"{difference}: by it, our certificate is not valid")
    return Finding(what, True if apart <= NEAR else None, difference)
