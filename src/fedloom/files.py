"""Writing files so that a crash, a full disk or an impatient user never leaves half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .crash import crash
from .errors import ExistsError, WriteError

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Turn what the system says into a WriteError that names the file."""
    try:
        yield
    except OSError as problem:
        raise WriteError(f"{path} cannot be written: {problem.strerror or problem}") from problem


def write_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    """The whole file or, on any failure, what was there before. `mode`: who may read it."""
    part = path.with_name(f".{path.name}.part")
    with telling(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(part, flags, mode), "wb") as file:
                whole, half = memoryview(content), len(content) // 2
                file.write(whole[:half])
                file.flush()
                crash(f"writing {path.name}")
                file.write(whole[half:])
                file.flush()
                os.fsync(file.fileno())
            crash(f"written {path.name}")
            part.replace(path)
            _sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def second_name(path: Path, other: Path) -> None:
    """The same file under another name as well; a copy, where the system has no such names."""
    part = other.with_name(f".{other.name}.part")
    with telling(other):
        try:
            part.unlink(missing_ok=True)
            os.link(path, part)
            part.replace(other)
        except OSError:
            write_bytes(other, path.read_bytes(), path.stat().st_mode & 0o777)
        finally:
            part.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """One more line, on disk when this returns."""
    with telling(path), path.open("ab") as file:
        file.write(line.encode("utf-8") + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes to the folder meanwhile; let go of by the system if this process dies."""
    if fcntl is None:
        yield
        return
    with telling(folder / LOCK):
        file = (folder / LOCK).open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExistsError(f"{folder} is in use: another process is running it") from None
        yield


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system knows how."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
