"""Messages as bytes: a typed envelope (msgspec) and its tensors (safetensors). Nothing is code.

    magic | length of the envelope | SHA-256 of (envelope, SHA-256 of tensors) | envelope | tensors

The envelope says of which run and move the message is, from whom to whom, and describes the
payload: a tree of dicts, tuples, records that are marked as travelling, tensors with shape and
dtype, and plain constants. A frame that differs from this in anything is refused whole.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple, NoReturn

import msgspec
import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import FrameError
from ..federation.messages import RECORDS, Key, Message
from ..federation.topology import Client, Party, title

MAGIC = b"FDL1"
HEAD = struct.Struct(">4sI32s")
CAP = 1 << 30  # bytes of a frame, unless a transport says otherwise
ENVELOPE_CAP = 1 << 20
DEPTH = 16
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class Leaf(Struct, tag="tensor", forbid_unknown_fields=True):
    """A tensor; tensors are numbered in the order of the tree."""

    dtype: str
    shape: tuple[int, ...]


class Constant(Struct, tag="constant", forbid_unknown_fields=True):
    value: bool | int | float | str | None


class Table(Struct, tag="dict", forbid_unknown_fields=True):
    items: dict[str, Node]


class Several(Struct, tag="tuple", forbid_unknown_fields=True):
    items: tuple[Node, ...]


class Record(Struct, tag="record", forbid_unknown_fields=True):
    name: str
    items: tuple[Node, ...]


Node = Leaf | Constant | Table | Several | Record


class Envelope(Struct, forbid_unknown_fields=True):
    run: str
    key: tuple[int, int]
    kind: str
    source: tuple[str, ...]
    to: tuple[str, ...]
    receipt: tuple[int, int] | None
    payload: Node


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


class Body(NamedTuple):
    """A payload as bytes; one for all who are sent the same."""

    node: Node
    data: bytes
    digest: bytes


class Frame(NamedTuple):
    """A message as bytes, in two pieces."""

    head: bytes
    body: bytes


def body_of(payload: Any, kind: str) -> Body:
    found: list[Tensor] = []
    node = _describe(payload, found, kind)
    data = save({str(i): a.detach().cpu().contiguous().clone() for i, a in enumerate(found)})
    return Body(node, data, hashlib.sha256(data).digest())


def frame_of(message: Message, run: str, body: Body) -> Frame:
    """The message as a frame of the run with this fingerprint."""
    source, to = _words(message.source), _words(message.to)
    told = (run, message.key, message.kind, source, to, message.receipt, body.node)
    envelope = _encoder.encode(Envelope(*told))
    head = HEAD.pack(MAGIC, len(envelope), _digest(envelope, body.digest))
    return Frame(head + envelope, body.data)


def encode(message: Message, run: str) -> bytes:
    """The same in one piece."""
    return b"".join(frame_of(message, run, body_of(message.payload, message.kind)))


def _digest(envelope: bytes | memoryview, body: bytes) -> bytes:
    digest = hashlib.sha256(envelope)
    digest.update(body)
    return digest.digest()


def decode(frame: bytes, run: str, source: Party, to: Party, cap: int = CAP) -> Message:
    """The message in a frame that came over the link from `source`; FrameError for anything else
    than a whole, unchanged message of this run and this link."""
    if len(frame) > cap:
        _refuse(source, f"{len(frame)} bytes; at most {cap} are taken")
    if len(frame) < HEAD.size:
        _refuse(source, f"{len(frame)} bytes are no frame")
    magic, length, digest = HEAD.unpack_from(frame)
    if magic != MAGIC:
        _refuse(source, "not a frame of this version")
    if length > min(ENVELOPE_CAP, len(frame) - HEAD.size):
        _refuse(source, "the envelope is longer than the frame, or than any may be")
    rest = memoryview(frame)[HEAD.size :]
    if _digest(rest[:length], hashlib.sha256(rest[length:]).digest()) != digest:
        _refuse(source, "it was changed or cut short on its way")
    try:
        envelope = _decoder.decode(rest[:length])
        tensors = load(bytes(rest[length:]))
    except (msgspec.MsgspecError, RecursionError, SafetensorError, ValueError, KeyError) as problem:
        _refuse(source, f"it cannot be read ({problem})")
    if envelope.run != run:
        _refuse(source, "it is of another run")
    if (envelope.source, envelope.to) != (_words(source), _words(to)):
        told = f"{'/'.join(envelope.source)} to {'/'.join(envelope.to)}"
        _refuse(source, f"it says to go from {told}, and came to {title(to)}")
    payload = _Reader(source, tensors).whole(envelope.payload)
    receipt = None if envelope.receipt is None else Key(*envelope.receipt)
    return Message(Key(*envelope.key), envelope.kind, source, to, payload, receipt)


def digest_of(frame: bytes) -> bytes:
    """What a frame is known by."""
    return HEAD.unpack_from(frame)[2]


def _words(party: Party) -> tuple[str, ...]:
    return tuple(party) if isinstance(party, Client) else (party,)


def _describe(value: Any, found: list[Tensor], kind: str) -> Node:
    if isinstance(value, Tensor):
        found.append(value)
        return Leaf(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    if value is None or type(value) in (bool, int, float, str):
        return Constant(value)
    if type(value) is dict and all(type(key) is str for key in value):
        return Table({key: _describe(v, found, kind) for key, v in value.items()})
    if type(value) is tuple:
        return Several(tuple(_describe(v, found, kind) for v in value))
    name = type(value).__name__
    if RECORDS.get(name) is type(value):
        return Record(name, tuple(_describe(v, found, kind) for v in value))
    raise FrameError(
        f"{kind}: a {name} cannot leave a party: payloads are tensors, numbers, text, dicts and "
        "tuples of them, and records marked with @travels"
    )


class _Reader:
    """Builds the payload that an envelope describes, from the tensors beside it."""

    def __init__(self, source: Party, tensors: dict[str, Tensor]):
        self._source, self._tensors, self._used = source, tensors, 0

    def whole(self, node: Node) -> Any:
        payload = self._build(node, DEPTH)
        if self._used != len(self._tensors):
            _refuse(self._source, f"{self._used} tensors are described, {len(self._tensors)} came")
        return payload

    def _build(self, node: Node, depth: int) -> Any:
        if depth == 0:
            _refuse(self._source, f"a payload of more than {DEPTH} levels")
        match node:
            case Leaf():
                return self._tensor(node)
            case Constant():
                return node.value
            case Table():
                return {key: self._build(v, depth - 1) for key, v in node.items.items()}
            case Several():
                return tuple(self._build(v, depth - 1) for v in node.items)
        record = RECORDS.get(node.name)
        if record is None or len(node.items) != len(record._fields):
            _refuse(self._source, f"no record {node.name!r} of {len(node.items)} fields is known")
        return record._make(self._build(v, depth - 1) for v in node.items)

    def _tensor(self, leaf: Leaf) -> Tensor:
        found = self._tensors.get(str(self._used))
        self._used += 1
        wanted = DTYPES.get(leaf.dtype)
        if found is None or found.dtype != wanted or tuple(found.shape) != leaf.shape:
            shape = " x ".join(map(str, leaf.shape)) or "a number"
            _refuse(self._source, f"a tensor ({leaf.dtype}, {shape}) is not as described")
        return found


def _refuse(source: Party, why: str) -> NoReturn:
    raise FrameError(f"a frame from {title(source)} was refused: {why}")
