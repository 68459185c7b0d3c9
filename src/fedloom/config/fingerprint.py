"""The fingerprint of a run: a digest of everything that must be equal at all parties.

Two parties with equal fingerprints draw the same minibatches, expect the same messages and make the
same moves. Paths of files, output and devices may differ between parties; they are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from .runfile import RunFile

LOCAL: dict[str, tuple[str, ...]] = {
    "data": ("folder", "verify", "salt_file", "show_ids"),
    "partition": ("file",),
    "engine": ("name", "device", "chunk", "threads", "replay", "compile", "executor", "schedule"),
}
LEFT_OUT = ("network", "evaluation", "output")  # virtual time, what is evaluated, what is written


def shared(file: RunFile) -> dict[str, Any]:
    """The part of a run file that must be equal at all parties."""
    content = {
        section: {k: v for k, v in values.items() if k not in LOCAL.get(section, ())}
        for section, values in file.to_dict().items()
        if section not in LEFT_OUT
    }
    silos = file.values["data"].get("silos")
    if silos is not None:  # the names of clients, not the paths of their tables
        content["data"]["silos"] = {
            silo: sorted(files) if isinstance(files, Mapping) else None
            for silo, files in silos.items()
        }
    return content


def fingerprint(file: RunFile, agreed: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of a resolved run file, the schedule that it replays, the version of this package,
    and anything else that the parties `agreed` on (as JSON)."""
    content = {
        "fedloom": _version(),
        "run": shared(file),
        "schedule": _replayed(file.engine.schedule),
        "agreed": agreed,
    }
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(plain.encode()).hexdigest()


def _replayed(path: str | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} is not a recorded schedule: {problem}") from None


def _version() -> str:
    try:
        return version("fedloom")
    except PackageNotFoundError:
        return "unknown"
