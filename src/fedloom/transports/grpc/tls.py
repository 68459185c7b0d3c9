"""Mutual TLS: identities, listening, dialling; and how far a peer's clock is from ours."""

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
from ..links.link import CHUNK
from ..links.party import Timing
from .listener import PATIENCE

METHOD = "/fedloom.Federation/Talk"
TIME = "/fedloom.Federation/Time"
SECONDS = struct.Struct(">d")  # since 1970
STREAMS = 4  # at once on a connection; a session takes one
OF_SERVERS = [
    ("grpc.server_handshake_timeout_ms", int(1000 * PATIENCE)),
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.http2.max_ping_strikes", 0),  # a member may ping while this process is busy
]
CLOCK_QUERIES = 3  # the one with the shortest round trip is used


class Admission(Protocol):
    """The party of a certificate, or RefusedError."""

    def admit(self, pem: bytes) -> Party: ...


@dataclass(frozen=True)
class PeerAddress:
    """The address of a listening party, and how it is authenticated: by its CA, the name in its
    certificate, and the gate."""

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
        """A signature that proves that we have the key; it names the run and the asking party."""
        key = load_pem_private_key(self.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key.sign(_words(challenge, run, to), ec.ECDSA(hashes.SHA256()))


def is_proved(certificate: bytes, proof: bytes, challenge: bytes, run: str, to: Party) -> bool:
    """Whether the proof is valid. gRPC does not show the dialling side the peer's certificate, so
    the key must sign a challenge."""
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
class ListenSettings:
    """Where a party listens, and which peers it admits. `cas`: the CAs of all peers, as PEM."""

    bind: str
    gate: Admission
    cas: bytes
    expected: tuple[Party, ...]


def channel_to(address: PeerAddress, own: Identity, timing: Timing) -> Any:
    """A channel to a party, with mutual TLS."""
    secure = grpc.ssl_channel_credentials(address.ca, own.key, own.certificate)
    options = [*_options(timing), ("grpc.ssl_target_name_override", address.host_name)]
    return grpc.aio.secure_channel(address.target, secure, options=options)


class ClockDifference(NamedTuple):
    """Seconds by which a clock is ahead of ours. `unsure`: half the round trip."""

    ahead: float
    unsure: float


def clock_of(address: PeerAddress, own: Identity, within: float) -> ClockDifference:
    """The clock of a listening party; RefusedError or ConnectionError where it does not answer."""
    secure = grpc.ssl_channel_credentials(address.ca, own.key, own.certificate)
    options = [("grpc.ssl_target_name_override", address.host_name)]
    with grpc.secure_channel(address.target, secure, options) as channel:
        try:
            answers = [_difference(channel.unary_unary(TIME), within) for _ in range(CLOCK_QUERIES)]
        except grpc.RpcError as problem:
            refused = problem.code() == grpc.StatusCode.PERMISSION_DENIED
            raise (RefusedError if refused else ConnectionError)(problem.details()) from None
        except struct.error:
            raise ConnectionError("the answer is not a time") from None
    return min(answers, key=lambda answer: answer.unsure)


def _difference(ask: Any, within: float) -> ClockDifference:
    before, begun = time.time(), time.monotonic()
    (theirs,) = SECONDS.unpack(ask(b"", timeout=within))
    half = (time.monotonic() - begun) / 2
    return ClockDifference(theirs - before - half, half)


def server_for(
    door: ListenSettings, own: Identity, timing: Timing, answer: Any, tell_time: Any
) -> tuple[Any, int]:
    """A gRPC server on this machine only, behind a Listener, and its port. `answer` and `tell_time`
    are called for peers with a certificate of one of the CAs."""
    server = grpc.aio.server(options=[*_options(timing), *OF_SERVERS])
    server.add_generic_rpc_handlers((_Handler(answer, tell_time),))
    pair = (own.key, own.certificate)
    secure = grpc.ssl_server_credentials([pair], door.cas, require_client_auth=True)
    return server, server.add_secure_port("127.0.0.1:0", secure)


class _Handler(grpc.GenericRpcHandler):
    """The two methods of the service."""

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
