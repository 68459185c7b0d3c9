"""Writing files so that a crash, a full disk or an impatient user never leaves half of one; and who
may read them.

A file is private unless its writer says that it is to be shared: its owner alone may read it, and a
folder that is made for it is its owner's alone, whatever the umask says. What is shared others may
read as the umask says; nobody else may write it, or a certificate and an allow-list would be worth
nothing.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .crash_points import crash
from .errors import DataError, ExistsError, SettingError, WriteError

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
PRIVATE, SHARED = 0o600, 0o644  # modes of a file


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Turn what the system says into a WriteError that names the file."""
    try:
        yield
    except OSError as problem:
        raise WriteError(f"{path} cannot be written: {problem.strerror or problem}") from problem


def write_bytes(path: Path, content: bytes, mode: int = PRIVATE, durable: bool = True) -> None:
    """The whole file or, on any failure, what was there before; `durable`: also if the machine
    fails."""
    part = path.with_name(f".{path.name}.part")
    make_folder(path.parent, mode)
    with telling(path):
        try:
            part.unlink(missing_ok=True)
            with os.fdopen(_opened(part, os.O_WRONLY | os.O_EXCL, mode), "wb") as file:
                whole, half = memoryview(content), len(content) // 2
                file.write(whole[:half])
                file.flush()
                crash(f"writing {path.name}")
                file.write(whole[half:])
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            crash(f"written {path.name}")
            part.replace(path)
            if durable:
                _sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str, mode: int = PRIVATE, durable: bool = True) -> None:
    write_bytes(path, text.encode("utf-8"), mode, durable)


def write_json(path: Path, value: Any, mode: int = PRIVATE) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", mode)


class Appending:
    """A file that is only ever added to. It is opened once, so that lines can still be added when
    the process may open no more files; and again when somebody has moved it away (logrotate)."""

    def __init__(self, path: Path, mode: int = PRIVATE):
        self.path, self._mode = path, mode
        self._file: io.FileIO | None = None
        self._lock = threading.Lock()

    def add(self, line: str, durable: bool = True) -> None:
        """One more line; `durable`: on disk when this returns."""
        with telling(self.path), self._lock:
            if self._file is None or self._is_moved(self._file):
                opened = _opened(self.path, os.O_WRONLY | os.O_APPEND, self._mode)
                self.close()
                self._file = io.FileIO(opened, "ab")
            left = memoryview(line.encode("utf-8") + b"\n")
            while left:
                left = left[self._file.write(left) :]
            if durable:
                os.fsync(self._file.fileno())

    def _is_moved(self, file: io.FileIO) -> bool:
        try:
            return not os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def touch(path: Path) -> None:
    """There is such a file, for its owner; what is in it stays."""
    with telling(path):
        os.close(_opened(path, os.O_WRONLY, PRIVATE))


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


def append_line(path: Path, line: str, mode: int = PRIVATE) -> None:
    """One more line, on disk when this returns."""
    with closing(Appending(path, mode)) as file:
        file.add(line)


def make_folder(path: Path, mode: int = PRIVATE) -> None:
    """A folder for files of this mode, with those above it that are lacking; one that is there
    stays as it is."""
    with telling(path):
        for folder in [*reversed(path.parents), path]:
            if not folder.is_dir():
                folder.mkdir(0o700 if mode == PRIVATE else 0o755, exist_ok=True)


def own_folder(path: Path) -> None:
    """A folder that is this program's alone: made, or closed to others where it is there and is
    ours to close; a folder for everybody (/tmp) is not."""
    make_folder(path)
    if os.name == "posix":
        found = path.stat()
        is_ours = found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX
        if is_ours and found.st_mode & 0o077:
            with telling(path):
                path.chmod(0o700)


def refuse_open(path: Path, what: str) -> None:
    """SettingError for a key, a secret, a salt that is open to others than its owner."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as problem:
        raise DataError(f"{what} {path}: cannot be read ({problem.strerror})") from None
    if os.name == "posix" and mode & 0o077:
        raise SettingError(
            f"{what} {path} is open to others than its owner (mode {mode:04o}): "
            f"chmod 600 {shlex.quote(str(path))}"
        )


def read_secret(path: Path, what: str) -> bytes:
    """What is in a file that is nobody else's."""
    refuse_open(path, what)
    try:
        return path.read_bytes()
    except OSError as problem:
        raise DataError(f"{what} {path}: cannot be read ({problem.strerror})") from None


def _opened(path: Path, flags: int, mode: int) -> int:
    """A handle of a file that may be new; a private one becomes so, if it was not."""
    handle = os.open(path, flags | os.O_CREAT, mode)
    if mode == PRIVATE and hasattr(os, "fchmod") and os.fstat(handle).st_mode & 0o777 != PRIVATE:
        os.fchmod(handle, PRIVATE)
    return handle


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes to the folder meanwhile; let go of by the system if this process dies."""
    if fcntl is None:
        yield
        return
    with telling(folder / LOCK):
        file = os.fdopen(_opened(folder / LOCK, os.O_WRONLY, PRIVATE), "w")
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
