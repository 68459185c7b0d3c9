"""Listens for connections, and forwards their bytes to gRPC, which listens on this machine only and
terminates TLS.

gRPC itself accepts connections until the process has no file handle left, and does not say whose
TLS handshake failed. So a new connection is a stranger here until it is admitted, which takes a
certificate and a Hello. A stranger has some seconds for that, and the number of strangers is
limited. At the limit, the address with the most strangers loses its oldest one. TLS is not
decrypted here.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ...core.errors import RefusedError, SettingError

TLS = b"\x16"  # the first byte of a TLS handshake
PATIENCE = 10.0  # seconds until a stranger must be admitted
CHUNK = 1 << 18
BACKLOG = 1024
EVERYWHERE = ("", "0.0.0.0", "::")
RESERVED, PER_CONNECTION = 128, 3  # file handles: for other uses; for a forwarded connection
SILENT, HANDSHAKING = 512, 128  # strangers before and after their first byte
MACOS = 10240  # the real limit of open files where macOS reports none
NOT_TLS = (
    "did not get through TLS: it has no valid certificate of a known CA, did not take ours, "
    "or hung up"
)
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, without flushing

OnRefused = Callable[[str, str], None]  # called with the reason and the address


@dataclass(frozen=True)
class StrangerLimits:
    """How many strangers there may be. A silent one takes one file handle. Among those that have
    begun a handshake, there is room for all members twice, since they may all reconnect at once."""

    silent: int = SILENT
    handshaking: int = HANDSHAKING

    @staticmethod
    def beside(members: int) -> StrangerLimits:
        """The limits beside so many members. SettingError where too few file handles are left."""
        limit = raised_limit()
        left = limit - RESERVED - PER_CONNECTION * members
        if left < RESERVED:
            enough = 2 * (RESERVED + PER_CONNECTION * members)
            raise SettingError(
                f"{limit} open files are too few to listen for {members} parties: allow {enough} "
                "(ulimit -n; LimitNOFILE of systemd)"
            )
        twice = 2 * members
        return StrangerLimits(
            min(max(SILENT, twice), left // 2),
            min(max(HANDSHAKING, twice), left // 2 // PER_CONNECTION),
        )


def raised_limit(enough: int = 1 << 16) -> int:
    """Raise this process's limit of open files, if possible; returns the limit."""
    try:
        import resource
    except ImportError:  # Windows
        return enough
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (enough, MACOS):
        if hard != resource.RLIM_INFINITY:
            wanted = min(hard, wanted)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
    return enough if soft == resource.RLIM_INFINITY else soft


@dataclass(eq=False)
class Incoming:
    """An accepted connection, and the task that serves it. `passed_tls`: it has made a call."""

    address: str
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    speaks: bool = False
    was_admitted: bool = False
    calls: int = 0  # admitted calls that are running
    passed_tls: bool = False
    why: str | None = None  # the reason why it was refused

    def drop(self, why: str | None = None) -> None:
        late = "was not let in" if self.speaks else "said nothing"
        self.why = self.why or why or f"{late} within {PATIENCE:g} s"
        if self.task is not None:
            self.task.cancel()

    def is_over(self) -> None:
        if not self.passed_tls:
            self.why = self.why or NOT_TLS


class Strangers:
    """Strangers of one kind, by address, up to a limit."""

    def __init__(self, room: int):
        self._room, self._count = room, 0
        self._at: defaultdict[str, dict[Incoming, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return self._count

    def enter(self, incoming: Incoming) -> None:
        if self._count >= self._room:
            crowd = max(self._at.values(), key=len)
            oldest = next(iter(crowd))
            self.leave(oldest)
            oldest.drop("made room for others")
        self._at[incoming.address][incoming] = None
        self._count += 1

    def leave(self, incoming: Incoming) -> None:
        crowd = self._at.get(incoming.address, {})
        if incoming in crowd:
            del crowd[incoming]
            self._count -= 1
            if not crowd:
                del self._at[incoming.address]


class Listener:
    """Listens at one address. `inner`: gRPC's port."""

    def __init__(self, bind: str, inner: int, limits: StrangerLimits, refused: OnRefused):
        self._sockets = _listening(bind)
        self.port: int = self._sockets[0].getsockname()[1]
        self._inner, self._refused = ("127.0.0.1", inner), refused
        self._strangers = {False: Strangers(limits.silent), True: Strangers(limits.handshaking)}
        self._incoming: dict[str, Incoming] = {}  # by gRPC's name of the peer
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            self._keep(loop.create_task(self._accept(listening)))

    async def close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    @property
    def strangers(self) -> int:
        """The number of strangers."""
        return sum(len(kind) for kind in self._strangers.values())

    def address_of(self, peer: str) -> str | None:
        """The address of the connection with this name in gRPC, which has passed TLS."""
        incoming = self._incoming.get(peer)
        if incoming is None:
            return None
        incoming.passed_tls = True
        return incoming.address

    @contextmanager
    def admitted(self, peer: str) -> Iterator[None]:
        """While a call runs, the connection with this name in gRPC is no stranger."""
        incoming = self._incoming.get(peer)
        if incoming is None or incoming.why is not None:
            raise ConnectionError("it was cut off, or did not come through the listener")
        self._set_free(incoming)
        incoming.was_admitted = incoming.passed_tls = True
        incoming.calls += 1
        try:
            yield
        finally:
            incoming.calls -= 1
            if not incoming.calls and self._incoming.get(peer) is incoming:
                self._suspect(incoming)

    def _suspect(self, incoming: Incoming) -> None:
        self._strangers[incoming.speaks].enter(incoming)
        incoming.timer = asyncio.get_running_loop().call_later(PATIENCE, incoming.drop)

    def _set_free(self, incoming: Incoming) -> None:
        self._strangers[incoming.speaks].leave(incoming)
        if incoming.timer is not None:
            incoming.timer.cancel()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                outer, (address, *_) = await loop.sock_accept(listening)
            except ConnectionError:  # it is closed already
                continue
            except OSError:  # no file handle is left
                await asyncio.sleep(0.05)
                continue
            incoming = Incoming(address.removeprefix("::ffff:"))
            incoming.task = loop.create_task(self._serve(outer, incoming))
            self._keep(incoming.task)
            self._suspect(incoming)
            await asyncio.sleep(0)  # let dropped connections close, and other tasks run

    async def _serve(self, outer: socket.socket, incoming: Incoming) -> None:
        try:
            with outer, suppress(OSError):
                await self._hand_on(outer, incoming)
        except asyncio.CancelledError:
            if incoming.why is None:
                raise
        finally:
            self._set_free(incoming)
        if incoming.why is not None and not incoming.was_admitted:
            self._refused(incoming.why, incoming.address)

    async def _hand_on(self, outer: socket.socket, incoming: Incoming) -> None:
        loop = asyncio.get_running_loop()
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = await loop.sock_recv(outer, CHUNK)
        if first and not first.startswith(TLS):
            incoming.why = "did not speak TLS"
        if not first or incoming.why is not None:
            return
        self._set_free(incoming)
        incoming.speaks = True
        self._suspect(incoming)
        with socket.socket() as inner:
            inner.setblocking(False)
            inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(inner, self._inner)
            name = f"ipv4:127.0.0.1:{inner.getsockname()[1]}"
            self._incoming[name] = incoming
            try:
                await loop.sock_sendall(inner, first)
                await self._both_ways(outer, inner, incoming)
            finally:
                del self._incoming[name]

    async def _both_ways(self, outer: socket.socket, inner: socket.socket, who: Incoming) -> None:
        async def back() -> None:
            await _pass_on(inner, outer)
            who.is_over()  # the other direction may stay open

        with suppress(ExceptionGroup):  # of OSErrors: a connection that breaks
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(outer, inner))
                group.create_task(back())
        who.is_over()


async def _pass_on(source: socket.socket, to: socket.socket) -> None:
    """Forward bytes until the end of the stream."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, CHUNK):
            await loop.sock_sendall(to, data)
    finally:
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)


def _listening(bind: str) -> list[socket.socket]:
    """Sockets that listen at HOST:PORT, on every local address of the host."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    made: list[socket.socket] = []
    problem: Exception | None = None
    try:
        if host in EVERYWHERE and socket.has_dualstack_ipv6():
            return [_socket(socket.AF_INET6, ("::", int(port)), dualstack=True)]
        addresses = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as why:
        raise RefusedError(f"cannot listen on {bind}: {why}") from None
    for family, name in sorted({(family, str(where[0])) for family, *_, where in addresses}):
        try:
            made.append(_socket(family, (name, int(port))))
        except OSError as why:
            problem = why
    if not made:
        raise RefusedError(f"cannot listen on {bind}: {problem}")
    return made


def _socket(family: int, address: tuple[str, int], dualstack: bool = False) -> socket.socket:
    made = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=dualstack)
    made.setblocking(False)
    return made
