"""What all parties of a run must have alike, as one number.

Two parties with equal fingerprints draw the same minibatches, expect the same messages and make the
same moves. Where their files lie, what they print and which device computes is their own business,
and in no fingerprint.
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
    "engine": ("name", "device", "chunk", "threads", "replay", "compile", "schedule"),
}
LEFT_OUT = ("network", "evaluation", "output")  # virtual time, what is evaluated, what is written


def shared(file: RunFile) -> dict[str, Any]:
    """What a run file says to all parties alike."""
    told = {
        section: {k: v for k, v in values.items() if k not in LOCAL.get(section, ())}
        for section, values in file.to_dict().items()
        if section not in LEFT_OUT
    }
    silos = file.values["data"].get("silos")
    if silos is not None:  # whose tables, not where they lie
        told["data"]["silos"] = {
            silo: sorted(files) if isinstance(files, Mapping) else None
            for silo, files in silos.items()
        }
    return told


def fingerprint(file: RunFile, agreed: Mapping[str, Any] | None = None) -> str:
    """Of a resolved run file, of the schedule that it replays, of the version of this package, and
    of what else the parties `agreed` on (as JSON has it)."""
    told = {
        "fedloom": _version(),
        "run": shared(file),
        "schedule": _replayed(file.engine.schedule),
        "agreed": agreed,
    }
    plain = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(plain.encode()).hexdigest()


def _replayed(path: str | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} is no recorded schedule: {problem}") from None


def _version() -> str:
    try:
        return version("fedloom")
    except PackageNotFoundError:
        return "unknown"
