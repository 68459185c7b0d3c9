"""A party's secret: what its noise and, at a hub, its silo's initial block are drawn from."""

from __future__ import annotations

import secrets
from pathlib import Path

from ...core import files
from ...core.errors import ExistsError, SettingError

LEAST = 32  # bytes
DIFFERENT = 8  # bytes that a secret has at least, or nobody has drawn it


def new_secret(path: Path) -> None:
    """32 random bytes, written as hexadecimal digits for this user alone."""
    if path.exists():
        raise ExistsError(
            f"{path} already exists. A secret in use cannot be replaced within a run: name "
            "another file"
        )
    files.write_bytes(path, secrets.token_hex(LEAST).encode() + b"\n")


def read_secret(path: Path) -> bytes:
    """Without white space around it, which some editors add."""
    secret = files.read_secret(path, "party.secret").strip()
    if len(secret) < LEAST or len(set(secret)) < DIFFERENT:
        raise SettingError(
            f"party.secret: {path} holds no secret, which is at least {LEAST} random bytes: "
            "fedloom keys secret FILE makes one"
        )
    return secret
