"""Files that tell whether they are whole: a digest over the whole file, inside the file.

Near its beginning such a file says `sha256:` and 64 hexadecimal digits: the digest of the file with
zeros in their place. So content and digest are replaced together, by one rename, and a safetensors
or JSON file stays one for every other tool. It finds damage, not forgery: whoever can write the
file can write its digest.
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
BLANK = (WORD + ZEROS).decode()  # what is written in a file before it has its digest
NEAR = 256  # bytes, from the beginning, in which the digest stands
FACTS = "fedloom"  # where a safetensors file has what is no tensor


def sealed(content: bytes) -> bytes:
    """Content with its digest in place of the BLANK near its beginning."""
    at = content.index(BLANK.encode(), 0, NEAR) + len(WORD)
    found = hashlib.sha256(content).hexdigest().encode()
    return content[:at] + found + content[at + len(ZEROS) :]


def is_whole(content: bytes, must: bool = True) -> bool:
    """Whether this is what was sealed. Without `must`, what has no digest is believed."""
    found = re.search(WORD + b"([0-9a-f]{64})", content[:NEAR])
    if found is None:
        return not must
    digest = hashlib.sha256(content[: found.start(1)] + ZEROS)
    digest.update(memoryview(content)[found.end(1) :])
    return digest.hexdigest().encode() == found[1]


def write(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """A file of any form whose content has the BLANK near its beginning. `mode`: who may read it,
    as in files.py."""
    write_bytes(path, sealed(content), mode)


def read(path: Path, cure: str = "", must: bool = True) -> bytes:
    """DamagedError, with what to do, for a file that is missing or not as it was written."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise DamagedError(_told(f"{path} cannot be read ({problem.strerror})", cure)) from None
    if not is_whole(content, must):
        what = "it is not what was written, or of another version of fedloom"
        raise DamagedError(_told(f"{path} is damaged: {what}", cure))
    return content


def _told(what: str, cure: str) -> str:
    return f"{what}; {cure}" if cure else what


# JSON


def write_json(path: Path, value: Mapping[str, Any], mode: int = PRIVATE) -> None:
    text = json.dumps({"seal": BLANK, **value}, indent=2, ensure_ascii=False) + "\n"
    write(path, text.encode("utf-8"), mode)


def read_json(path: Path, cure: str = "", must: bool = True) -> dict[str, Any]:
    """Without its digest. `must`: one that has none is refused; else it may be written by hand."""
    value = json.loads(read(path, cure, must))
    if not isinstance(value, dict):
        raise DamagedError(_told(f"{path} is no JSON object", cure))
    return {name: one for name, one in value.items() if name != "seal"}


# Tensors, and facts as JSON in the header


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], mode: int = PRIVATE
) -> None:
    """As safetensors. `facts`: JSON, in its metadata."""
    whole = {name: a.detach().cpu().contiguous().clone() for name, a in tensors.items()}
    write(path, save(whole, {FACTS: json.dumps({"seal": BLANK, **facts})}), mode)


def read_tensors(path: Path, cure: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Of the bytes that were checked: what becomes of the file later is no matter."""
    content = read(path, cure)
    try:
        return dict(sorted(load(content).items())), _facts(
            content[8 : 8 + int.from_bytes(content[:8], "little")]
        )
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as problem:
        raise DamagedError(_told(f"{path} holds something else ({problem!r})", cure)) from None


def facts_of(path: Path) -> dict[str, Any] | None:
    """The facts of a file of tensors as it says them, damaged or not."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return _facts(file.read(min(size, path.stat().st_size)))
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        return None


def _facts(header: bytes) -> dict[str, Any]:
    facts = json.loads(json.loads(header)["__metadata__"][FACTS])
    return {name: value for name, value in facts.items() if name != "seal"}
