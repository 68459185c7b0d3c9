"""Atomic writes, and file permissions.

A crash, a full disk or Ctrl-C never leaves half a file: the new content is complete, or the old one
stays. A file is PRIVATE unless its writer says SHARED. Only the owner can read a private file and
the folders made for it, whatever the umask. Others may read a shared file, as the umask allows;
nobody else may write it, since certificates and allow-lists are shared files.
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
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
PRIVATE, SHARED = 0o600, 0o644  # modes of a file


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """An OSError inside becomes a WriteError that names the file."""
    try:
        yield
    except OSError as problem:
        raise WriteError(f"{path} cannot be written: {problem.strerror or problem}") from problem


def write_bytes(path: Path, content: bytes, mode: int = PRIVATE, durable: bool = True) -> None:
    """Replace the file atomically: on any failure the old content stays. `durable`: also after a
    power failure."""
    part = path.with_name(f".{path.name}.part")
    make_folder(path.parent, mode)
    with write_errors(path):
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
    """A file that lines are appended to.

    It is opened once, so that lines can be added even when the process has no file handle left. It
    is opened again when somebody has moved it (logrotate)."""

    def __init__(self, path: Path, mode: int = PRIVATE):
        self.path, self._mode = path, mode
        self._file: io.FileIO | None = None
        self._lock = threading.Lock()

    def add(self, line: str, durable: bool = True) -> None:
        """Append a line. `durable`: it is on disk when this returns."""
        with write_errors(self.path), self._lock:
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
    """Create a private file, or make an existing one private; its content stays."""
    with write_errors(path):
        os.close(_opened(path, os.O_WRONLY, PRIVATE))


def link_or_copy(path: Path, other: Path) -> None:
    """A hard link, or a copy where the file system has no hard links."""
    part = other.with_name(f".{other.name}.part")
    with write_errors(other):
        try:
            part.unlink(missing_ok=True)
            os.link(path, part)
            part.replace(other)
        except OSError:
            write_bytes(other, path.read_bytes(), path.stat().st_mode & 0o777)
        finally:
            part.unlink(missing_ok=True)


def append_line(path: Path, line: str, mode: int = PRIVATE) -> None:
    """Append a line to a file; it is on disk when this returns."""
    with closing(Appending(path, mode)) as file:
        file.add(line)


def make_folder(path: Path, mode: int = PRIVATE) -> None:
    """Create a folder for files of this mode, and its parents. Existing folders stay as they
    are."""
    with write_errors(path):
        for folder in [*reversed(path.parents), path]:
            if not folder.is_dir():
                folder.mkdir(0o700 if mode == PRIVATE else 0o755, exist_ok=True)


def private_folder(path: Path) -> None:
    """Create a folder that only its owner can read, or close an existing one to others. A folder of
    another user, or a sticky one (/tmp), stays as it is."""
    make_folder(path)
    if os.name == "posix":
        status = path.stat()
        is_ours = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX
        if is_ours and status.st_mode & 0o077:
            with write_errors(path):
                path.chmod(0o700)


def check_private(path: Path, what: str) -> None:
    """SettingError for a key, a secret or a salt that others than its owner can read."""
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
    """The content of a file that only its owner can read."""
    check_private(path, what)
    try:
        return path.read_bytes()
    except OSError as problem:
        raise DataError(f"{what} {path}: cannot be read ({problem.strerror})") from None


def _opened(path: Path, flags: int, mode: int) -> int:
    """A file descriptor, of a new file or an existing one, with this mode."""
    handle = os.open(path, flags | os.O_CREAT, mode)
    if mode == PRIVATE and hasattr(os, "fchmod") and os.fstat(handle).st_mode & 0o777 != PRIVATE:
        os.fchmod(handle, PRIVATE)
    return handle


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """An exclusive lock on a folder. The system releases it if this process dies."""
    if fcntl is None:
        yield
        return
    with write_errors(folder / LOCK):
        file = os.fdopen(_opened(folder / LOCK, os.O_WRONLY, PRIVATE), "w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExistsError(f"{folder} is in use: another process is running it") from None
        yield


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, on POSIX."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
