"""Mutual TLS: who a party is, where it listens and whom it lets in, whom it dials; and how far the
clock of whoever is dialled is from ours."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import grpc
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from ...core.errors import RefusedError
from ...core.topology import Party
from ..link import CHUNK
from ..party import Timing
from .listener import PATIENCE

METHOD = "/fedloom.Federation/Talk"
TIME = "/fedloom.Federation/Time"
SECONDS = struct.Struct(">d")  # since 1970
STREAMS = 4  # at once, on a connection; a talk is one
OF_SERVERS = [
    ("grpc.server_handshake_timeout_ms", int(1000 * PATIENCE)),
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.http2.max_ping_strikes", 0),  # pings of a member that this process kept waiting
]
ASKED = 3  # times: the shortest way there and back tells most


class Admission(Protocol):
    """Whose certificate it is, or RefusedError."""

    def admit(self, pem: bytes) -> Party: ...


@dataclass(frozen=True)
class Address:
    """Where a party that listens is, and how it is known: by its CA, its certificate's name, and
    what the gate says of the certificate."""

    target: str
    ca: bytes
    host_name: str
    gate: Admission


@dataclass(frozen=True)
class Identity:
    """A party's own certificate and key, as PEM."""

    certificate: bytes
    key: bytes

    def prove(self, challenge: bytes, run: str, to: Party) -> bytes:
        """That the key is here, and that it is this party who asked."""
        key = load_pem_private_key(self.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key.sign(_words(challenge, run, to), ec.ECDSA(hashes.SHA256()))


def is_proved(certificate: bytes, proof: bytes, challenge: bytes, run: str, to: Party) -> bool:
    """gRPC does not tell who dials which certificate it met: the key itself must answer."""
    key = load_pem_x509_certificate(certificate).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(proof, _words(challenge, run, to), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _words(challenge: bytes, run: str, to: Party) -> bytes:
    return b"\0".join([b"fedloom: I answer", run.encode(), str(to).encode(), challenge])


@dataclass(frozen=True)
class Door:
    """Where a party listens, and whom it lets in. `cas`: of all who may come, as PEM."""

    bind: str
    gate: Admission
    cas: bytes
    expected: tuple[Party, ...]


def channel_to(address: Address, own: Identity, timing: Timing) -> Any:
    """A channel to a party that proves to be the one that is meant."""
    secure = grpc.ssl_channel_credentials(address.ca, own.key, own.certificate)
    options = [*_options(timing), ("grpc.ssl_target_name_override", address.host_name)]
    return grpc.aio.secure_channel(address.target, secure, options=options)


class Difference(NamedTuple):
    """Seconds by which a clock is ahead of ours; half the way there and back is not known."""

    ahead: float
    unsure: float


def clock_of(address: Address, own: Identity, within: float) -> Difference:
    """Of a party that listens; RefusedError or ConnectionError where it does not say."""
    secure = grpc.ssl_channel_credentials(address.ca, own.key, own.certificate)
    options = [("grpc.ssl_target_name_override", address.host_name)]
    with grpc.secure_channel(address.target, secure, options) as channel:
        try:
            found = [_difference(channel.unary_unary(TIME), within) for _ in range(ASKED)]
        except grpc.RpcError as problem:
            refused = problem.code() == grpc.StatusCode.PERMISSION_DENIED
            raise (RefusedError if refused else ConnectionError)(problem.details()) from None
        except struct.error:
            raise ConnectionError("it says something else than the time") from None
    return min(found, key=lambda one: one.unsure)


def _difference(ask: Any, within: float) -> Difference:
    before, begun = time.time(), time.monotonic()
    (theirs,) = SECONDS.unpack(ask(b"", timeout=within))
    half = (time.monotonic() - begun) / 2
    return Difference(theirs - before - half, half)


def server_for(
    door: Door, own: Identity, timing: Timing, answer: Any, tell_time: Any
) -> tuple[Any, int]:
    """A server on this machine only, behind a front, and its port; `answer` and `tell_time` are
    called for whoever has a certificate of one of the CAs."""
    server = grpc.aio.server(options=[*_options(timing), *OF_SERVERS])
    server.add_generic_rpc_handlers((_Handler(answer, tell_time),))
    pair = (own.key, own.certificate)
    secure = grpc.ssl_server_credentials([pair], door.cas, require_client_auth=True)
    return server, server.add_secure_port("127.0.0.1:0", secure)


class _Handler(grpc.GenericRpcHandler):
    """The two methods there are."""

    def __init__(self, answer: Any, tell_time: Any):
        self._methods = {
            METHOD: grpc.stream_stream_rpc_method_handler(answer),
            TIME: grpc.unary_unary_rpc_method_handler(tell_time),
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)


def _options(timing: Timing) -> list[tuple[str, Any]]:
    beat, silence = int(1000 * timing.beat), int(1000 * timing.silence)
    return [
        ("grpc.max_receive_message_length", CHUNK + (1 << 16)),
        ("grpc.max_send_message_length", CHUNK + (1 << 16)),
        ("grpc.keepalive_time_ms", 2 * beat),
        ("grpc.keepalive_timeout_ms", silence),
        ("grpc.http2.ping_timeout_ms", silence),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", beat // 2),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
