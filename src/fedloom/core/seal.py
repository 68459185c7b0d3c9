"""Sealed files: each contains a checksum of itself.

Near its beginning is `sha256:` and 64 hexadecimal digits: the digest of the file with zeros in
their place. Content and digest are written by one rename, and other tools can still read the
safetensors or JSON file. This finds damage, not forgery: whoever can write the file can write its
digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .errors import DamagedError
from .files import PRIVATE, write_bytes

WORD = b"sha256:"
ZEROS = b"0" * 64
BLANK = (WORD + ZEROS).decode()  # stands where the digest will be
NEAR = 256  # the digest is within the first so many bytes
FACTS = "fedloom"  # the key of our metadata in a safetensors header


def sealed(content: bytes) -> bytes:
    """Content with its digest in place of the BLANK near its beginning."""
    at = content.index(BLANK.encode(), 0, NEAR) + len(WORD)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:at] + digest + content[at + len(ZEROS) :]


def is_whole(content: bytes, must: bool = True) -> bool:
    """Whether the digest is right. Content without a digest passes, unless it `must` have one."""
    match = re.search(WORD + b"([0-9a-f]{64})", content[:NEAR])
    if match is None:
        return not must
    digest = hashlib.sha256(content[: match.start(1)] + ZEROS)
    digest.update(memoryview(content)[match.end(1) :])
    return digest.hexdigest().encode() == match[1]


def write(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Write a file of any format whose content has the BLANK near its beginning. `mode`: PRIVATE or
    SHARED, as in files.py."""
    write_bytes(path, sealed(content), mode)


def read(path: Path, cure: str = "", must: bool = True) -> bytes:
    """The content, or a DamagedError where it is missing or damaged, which advises a `cure`."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise DamagedError(_advising(f"{path} cannot be read ({problem.strerror})", cure)) from None
    if not is_whole(content, must):
        what = "it is not what was written, or of another version of fedloom"
        raise DamagedError(_advising(f"{path} is damaged: {what}", cure))
    return content


def _advising(what: str, cure: str) -> str:
    return f"{what}; {cure}" if cure else what


# JSON


def write_json(path: Path, value: Mapping[str, Any], mode: int = PRIVATE) -> None:
    text = json.dumps({"seal": BLANK, **value}, indent=2, ensure_ascii=False) + "\n"
    write(path, text.encode("utf-8"), mode)


def read_json(path: Path, cure: str = "", must: bool = True) -> dict[str, Any]:
    """The object, without its digest. Not `must`: a file written by hand, without one, will do."""
    value = json.loads(read(path, cure, must))
    if not isinstance(value, dict):
        raise DamagedError(_advising(f"{path} is not a JSON object", cure))
    return {name: item for name, item in value.items() if name != "seal"}


# Tensors, with facts as JSON in the header


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], mode: int = PRIVATE
) -> None:
    """Write safetensors. `facts`: stored as JSON in its metadata."""
    whole = {name: a.detach().cpu().contiguous().clone() for name, a in tensors.items()}
    write(path, save(whole, {FACTS: json.dumps({"seal": BLANK, **facts})}), mode)


def read_tensors(path: Path, cure: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts, from the very bytes that were checked."""
    content = read(path, cure)
    try:
        return dict(sorted(load(content).items())), _facts(
            content[8 : 8 + int.from_bytes(content[:8], "little")]
        )
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as problem:
        raise DamagedError(
            _advising(f"{path} has other content than expected ({problem!r})", cure)
        ) from None


def facts_of(path: Path) -> dict[str, Any] | None:
    """The facts of a file of tensors, without a check of its digest; None where it has none."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return _facts(file.read(min(size, path.stat().st_size)))
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        return None


def _facts(header: bytes) -> dict[str, Any]:
    facts = json.loads(json.loads(header)["__metadata__"][FACTS])
    return {name: value for name, value in facts.items() if name != "seal"}
