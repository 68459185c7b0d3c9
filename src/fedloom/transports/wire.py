"""Messages as bytes: a typed envelope (msgspec) and its tensors (safetensors). Nothing is code.

    magic | length of the envelope | SHA-256 of (envelope, SHA-256 of tensors) | envelope | tensors

The envelope has the run, the move, the source and the receiver of the message, and describes its
payload: a tree of dicts, tuples, records marked with @travels, tensors with shape and dtype, and
constants. The tensors are a safetensors file. Its header follows from the envelope, so it is
compared byte by byte and never parsed. Any other frame is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from ..core.errors import FrameError
from ..core.payload import RECORDS
from ..core.topology import Client, Party, title
from ..fabric.kinds import Key, Message

MAGIC = b"FDL1"
HEAD = struct.Struct(">4sI32s")
CAP = 1 << 30  # bytes of a frame, unless a transport says otherwise
ENVELOPE_CAP = 1 << 20
DEPTH = 16
DTYPES = {  # by name: the dtype, and its name in safetensors
    str(dtype).removeprefix("torch."): (dtype, name)
    for dtype, name in (
        *((torch.float64, "F64"), (torch.float32, "F32"), (torch.float16, "F16")),
        *((torch.bfloat16, "BF16"), (torch.int64, "I64"), (torch.int32, "I32")),
        *((torch.int16, "I16"), (torch.int8, "I8"), (torch.uint8, "U8"), (torch.bool, "BOOL")),
    )
}


class TensorNode(Struct, tag="tensor", forbid_unknown_fields=True):
    """A tensor. Tensors are numbered in the order of the tree."""

    dtype: str
    shape: tuple[int, ...]


class ConstantNode(Struct, tag="constant", forbid_unknown_fields=True):
    value: bool | int | float | str | None


class DictNode(Struct, tag="dict", forbid_unknown_fields=True):
    items: dict[str, Node]


class TupleNode(Struct, tag="tuple", forbid_unknown_fields=True):
    items: tuple[Node, ...]


class RecordNode(Struct, tag="record", forbid_unknown_fields=True):
    name: str
    items: tuple[Node, ...]


Node = TensorNode | ConstantNode | DictNode | TupleNode | RecordNode


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
    """A payload as bytes; shared by all receivers of the same payload."""

    node: Node
    data: bytes
    digest: bytes


class Frame(NamedTuple):
    """A message as bytes, in two parts."""

    head: bytes
    body: bytes


def body_of(payload: Any, kind: str) -> Body:
    tensors: list[Tensor] = []
    node = _describe(payload, tensors, kind)
    raw = [a.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for a in tensors]
    data = b"".join([_own_header(*map(_spec, _leaves(node))), *raw])  # type: ignore[list-item]
    return Body(node, data, hashlib.sha256(data).digest())


def _leaves(node: Node) -> list[TensorNode]:
    """The tensors of a payload, in the order of the tree."""
    match node:
        case TensorNode():
            return [node]
        case ConstantNode():
            return []
        case DictNode():
            return [leaf for item in node.items.values() for leaf in _leaves(item)]
    return [leaf for item in node.items for leaf in _leaves(item)]


def _spec(leaf: TensorNode) -> tuple[str, tuple[int, ...]]:
    return leaf.dtype, leaf.shape


def _header(*leaves: tuple[str, tuple[int, ...]]) -> bytes:
    """The header of a safetensors file with tensors of these dtypes and shapes. KeyError for an
    unknown dtype."""
    entries, at = {}, 0
    for number, (kind, shape) in enumerate(leaves):
        dtype, name = DTYPES[kind]
        until = at + dtype.itemsize * math.prod(shape)
        entries[str(number)] = {"dtype": name, "shape": shape, "data_offsets": (at, until)}
        at = until
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


_own_header = lru_cache(256)(_header)  # for own frames only: peers could fill the cache


def frame_of(message: Message, run: str, body: Body) -> Frame:
    """The message as a frame of the run with this fingerprint."""
    source, to = _words(message.source), _words(message.to)
    fields = (run, message.key, message.kind, source, to, message.receipt, body.node)
    envelope = _encoder.encode(Envelope(*fields))
    head = HEAD.pack(MAGIC, len(envelope), _digest(envelope, body.digest))
    return Frame(head + envelope, body.data)


def encode(message: Message, run: str) -> bytes:
    """The frame of a message, in one piece."""
    return b"".join(frame_of(message, run, body_of(message.payload, message.kind)))


def _digest(envelope: bytes | memoryview, body: bytes) -> bytes:
    digest = hashlib.sha256(envelope)
    digest.update(body)
    return digest.digest()


def decode(frame: bytes | bytearray, run: str, source: Party, to: Party, cap: int = CAP) -> Message:
    """The message in a frame that was received from `source`. FrameError for anything else than a
    complete, unchanged message of this run and this link."""
    if len(frame) > cap:
        _refuse(source, f"{len(frame)} bytes; at most {cap} are taken")
    if len(frame) < HEAD.size:
        _refuse(source, f"{len(frame)} bytes are too short for a frame")
    magic, length, digest = HEAD.unpack_from(frame)
    if magic != MAGIC:
        _refuse(source, "not a frame of this version")
    if length > min(ENVELOPE_CAP, len(frame) - HEAD.size):
        _refuse(source, "the envelope is longer than the frame, or than any may be")
    rest = memoryview(bytearray(frame) if isinstance(frame, bytes) else frame)[HEAD.size :]
    body = rest[length:]
    if _digest(rest[:length], hashlib.sha256(body).digest()) != digest:
        _refuse(source, "it was changed or cut short on its way")
    try:
        envelope = _decoder.decode(rest[:length])
    except (msgspec.MsgspecError, RecursionError, ValueError) as problem:
        _refuse(source, f"it cannot be read ({problem})")
    if envelope.run != run:
        _refuse(source, "it is of another run")
    if (envelope.source, envelope.to) != (_words(source), _words(to)):
        route = f"{'/'.join(envelope.source)} to {'/'.join(envelope.to)}"
        _refuse(source, f"it says to go from {route}, and came to {title(to)}")
    payload = _Reader(source, body).whole(envelope.payload)
    receipt = None if envelope.receipt is None else Key(*envelope.receipt)
    return Message(Key(*envelope.key), envelope.kind, source, to, payload, receipt)


def digest_of(frame: bytes | bytearray) -> bytes:
    """The digest that identifies a frame."""
    return HEAD.unpack_from(frame)[2]


def _words(party: Party) -> tuple[str, ...]:
    return tuple(party) if isinstance(party, Client) else (party,)


def _describe(value: Any, tensors: list[Tensor], kind: str) -> Node:
    if isinstance(value, Tensor):
        tensors.append(value)
        return TensorNode(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    if value is None or type(value) in (bool, int, float, str):
        return ConstantNode(value)
    if type(value) is dict and all(type(key) is str for key in value):
        return DictNode({key: _describe(v, tensors, kind) for key, v in value.items()})
    if type(value) is tuple:
        return TupleNode(tuple(_describe(v, tensors, kind) for v in value))
    name = type(value).__name__
    if RECORDS.get(name) is type(value):
        return RecordNode(name, tuple(_describe(v, tensors, kind) for v in value))
    raise FrameError(
        f"{kind}: a {name} cannot leave a party: payloads are tensors, numbers, text, dicts and "
        "tuples of them, and records marked with @travels"
    )


class _Reader:
    """Builds the payload that an envelope describes from the bytes of its tensors."""

    def __init__(self, source: Party, body: memoryview):
        self._source, self._body, self._at = source, body, 0

    def whole(self, node: Node) -> Any:
        if _is_deeper(node, DEPTH):
            _refuse(self._source, f"a payload of more than {DEPTH} levels")
        leaves = _leaves(node)
        for leaf in leaves:
            fits = all(0 <= size <= CAP for size in leaf.shape) and len(leaf.shape) <= DEPTH
            if leaf.dtype not in DTYPES or not fits:
                _refuse(self._source, f"{leaf.dtype} {list(leaf.shape)} is not a tensor")
        header = _header(*map(_spec, leaves))
        sizes = (DTYPES[leaf.dtype][0].itemsize * math.prod(leaf.shape) for leaf in leaves)
        wanted = len(header) + sum(sizes)
        if len(self._body) != wanted or self._body[: len(header)] != header:
            _refuse(self._source, "its tensors are not as described")
        self._at = len(header)
        return self._build(node)

    def _build(self, node: Node) -> Any:
        match node:
            case TensorNode():
                return self._tensor(node)
            case ConstantNode():
                return node.value
            case DictNode():
                return {key: self._build(v) for key, v in node.items.items()}
            case TupleNode():
                return tuple(self._build(v) for v in node.items)
        record = RECORDS.get(node.name)
        if record is None or len(node.items) != len(record._fields):
            _refuse(self._source, f"no record {node.name!r} of {len(node.items)} fields is known")
        return record._make(self._build(v) for v in node.items)

    def _tensor(self, leaf: TensorNode) -> Tensor:
        dtype, _ = DTYPES[leaf.dtype]
        size = dtype.itemsize * math.prod(leaf.shape)
        piece, self._at = self._body[self._at : self._at + size], self._at + size
        if not size:
            return torch.zeros(leaf.shape, dtype=dtype)
        raw = torch.frombuffer(piece, dtype=torch.uint8).clone()  # aligned as torch's own tensors
        if dtype == torch.bool and int(raw.max()) > 1:
            _refuse(self._source, "neither true nor false")
        return raw.view(dtype).reshape(leaf.shape)


def _is_deeper(node: Node, levels: int) -> bool:
    if levels == 0:
        return True
    match node:
        case TensorNode() | ConstantNode():
            return False
        case DictNode():
            return any(_is_deeper(item, levels - 1) for item in node.items.values())
    return any(_is_deeper(item, levels - 1) for item in node.items)


def _refuse(source: Party, why: str) -> NoReturn:
    raise FrameError(f"a frame from {title(source)} was refused: {why}")
