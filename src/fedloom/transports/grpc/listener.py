"""Where a party listens: connections are taken here, and their bytes handed on to gRPC, which
listens on this machine only and ends TLS.

gRPC takes every connection that it can, until the process has no file handle left, and does not
say whose TLS it refused. So whoever connects is a stranger here until it is let in, which takes a
certificate and a greeting: it has some seconds for that, and there is only so much room. Where it
is full, the address with the most strangers loses its oldest. TLS is not looked into.
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

TLS = b"\x16"  # how a handshake begins
PATIENCE = 10.0  # seconds in which one must be let in
CHUNK = 1 << 18
BACKLOG = 1024
EVERYWHERE = ("", "0.0.0.0", "::")
OWN, EACH = 128, 3  # file handles: of all else; of a connection that is handed on
SILENT, SPEAKING = 512, 128  # strangers: before and after their first byte
MACOS = 10240  # files that it lets a process open, where it says any number
NOT_TLS = (
    "did not get through TLS: it has no valid certificate of a known CA, did not take ours, "
    "or hung up"
)
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: nothing is kept for those who are cut off

Refused = Callable[[str, str], None]  # why, and the address


@dataclass(frozen=True)
class Limits:
    """How many strangers there may be: those who have said nothing cost one file handle each.
    Among those who speak, all members have room twice: they may all come back at once."""

    silent: int = SILENT
    speaking: int = SPEAKING

    @staticmethod
    def beside(members: int) -> Limits:
        """What is left beside so many members; SettingError if that is too little."""
        may = raised_limit()
        left = may - OWN - EACH * members
        if left < OWN:
            enough = 2 * (OWN + EACH * members)
            raise SettingError(
                f"{may} open files are too few to listen for {members} parties: allow {enough} "
                "(ulimit -n; LimitNOFILE of systemd)"
            )
        twice = 2 * members
        return Limits(
            min(max(SILENT, twice), left // 2), min(max(SPEAKING, twice), left // 2 // EACH)
        )


def raised_limit(enough: int = 1 << 16) -> int:
    """How many files this process may have open, after it has asked for enough."""
    try:
        import resource
    except ImportError:  # a system without such limits
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
class Visitor:
    """A connection, and the task that serves it. `knocked`: it came through TLS, and called."""

    address: str
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    speaks: bool = False
    was_let_in: bool = False
    calls: int = 0  # that it was let in for, and that go on
    knocked: bool = False
    why: str | None = None  # it was refused

    def cut(self, why: str | None = None) -> None:
        late = "was not let in" if self.speaks else "said nothing"
        self.why = self.why or why or f"{late} within {PATIENCE:g} s"
        if self.task is not None:
            self.task.cancel()

    def is_over(self) -> None:
        if not self.knocked:
            self.why = self.why or NOT_TLS


class Strangers:
    """Of one kind, by address; as many as there is room for."""

    def __init__(self, room: int):
        self._room, self._count = room, 0
        self._at: defaultdict[str, dict[Visitor, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return self._count

    def enter(self, visitor: Visitor) -> None:
        if self._count >= self._room:
            crowd = max(self._at.values(), key=len)
            oldest = next(iter(crowd))
            self.leave(oldest)
            oldest.cut("made room for others")
        self._at[visitor.address][visitor] = None
        self._count += 1

    def leave(self, visitor: Visitor) -> None:
        crowd = self._at.get(visitor.address, {})
        if visitor in crowd:
            del crowd[visitor]
            self._count -= 1
            if not crowd:
                del self._at[visitor.address]


class Front:
    """At one address; `inner` is gRPC's port."""

    def __init__(self, bind: str, inner: int, limits: Limits, refused: Refused):
        self._listeners = _listening(bind)
        self.port: int = self._listeners[0].getsockname()[1]
        self._inner, self._refused = ("127.0.0.1", inner), refused
        self._strangers = {False: Strangers(limits.silent), True: Strangers(limits.speaking)}
        self._visitors: dict[str, Visitor] = {}  # by what gRPC calls them
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            self._keep(loop.create_task(self._accept(listener)))

    async def close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    @property
    def strangers(self) -> int:
        """How many are here."""
        return sum(len(each) for each in self._strangers.values())

    def knock(self, peer: str) -> str | None:
        """Whom gRPC calls so came through TLS; its address."""
        visitor = self._visitors.get(peer)
        if visitor is None:
            return None
        visitor.knocked = True
        return visitor.address

    @contextmanager
    def let_in(self, peer: str) -> Iterator[None]:
        """Whom gRPC calls so is no stranger meanwhile."""
        visitor = self._visitors.get(peer)
        if visitor is None or visitor.why is not None:
            raise ConnectionError("it was cut off, or did not come through the front")
        self._set_free(visitor)
        visitor.was_let_in = visitor.knocked = True
        visitor.calls += 1
        try:
            yield
        finally:
            visitor.calls -= 1
            if not visitor.calls and self._visitors.get(peer) is visitor:
                self._suspect(visitor)

    def _suspect(self, visitor: Visitor) -> None:
        self._strangers[visitor.speaks].enter(visitor)
        visitor.timer = asyncio.get_running_loop().call_later(PATIENCE, visitor.cut)

    def _set_free(self, visitor: Visitor) -> None:
        self._strangers[visitor.speaks].leave(visitor)
        if visitor.timer is not None:
            visitor.timer.cancel()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                outer, (address, *_) = await loop.sock_accept(listener)
            except ConnectionError:  # it has left already
                continue
            except OSError:  # there is no file handle
                await asyncio.sleep(0.05)
                continue
            visitor = Visitor(address.removeprefix("::ffff:"))
            visitor.task = loop.create_task(self._serve(outer, visitor))
            self._keep(visitor.task)
            self._suspect(visitor)
            await asyncio.sleep(0)  # whoever had to go goes, and nobody else waits for a crowd

    async def _serve(self, outer: socket.socket, visitor: Visitor) -> None:
        try:
            with outer, suppress(OSError):
                await self._hand_on(outer, visitor)
        except asyncio.CancelledError:
            if visitor.why is None:
                raise
        finally:
            self._set_free(visitor)
        if visitor.why is not None and not visitor.was_let_in:
            self._refused(visitor.why, visitor.address)

    async def _hand_on(self, outer: socket.socket, visitor: Visitor) -> None:
        loop = asyncio.get_running_loop()
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = await loop.sock_recv(outer, CHUNK)
        if first and not first.startswith(TLS):
            visitor.why = "did not speak TLS"
        if not first or visitor.why is not None:
            return
        self._set_free(visitor)
        visitor.speaks = True
        self._suspect(visitor)
        with socket.socket() as inner:
            inner.setblocking(False)
            inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(inner, self._inner)
            name = f"ipv4:127.0.0.1:{inner.getsockname()[1]}"
            self._visitors[name] = visitor
            try:
                await loop.sock_sendall(inner, first)
                await self._both_ways(outer, inner, visitor)
            finally:
                del self._visitors[name]

    async def _both_ways(self, outer: socket.socket, inner: socket.socket, who: Visitor) -> None:
        async def back() -> None:
            await _pass_on(inner, outer)
            who.is_over()  # it may stay on

        with suppress(ExceptionGroup):  # of OSErrors: one that ends in the middle
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(outer, inner))
                group.create_task(back())
        who.is_over()


async def _pass_on(source: socket.socket, to: socket.socket) -> None:
    """What comes, until there is no more."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, CHUNK):
            await loop.sock_sendall(to, data)
    finally:
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)


def _listening(bind: str) -> list[socket.socket]:
    """Sockets that listen at HOST:PORT, at every address of the host that is here."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    made: list[socket.socket] = []
    problem: Exception | None = None
    try:
        if host in EVERYWHERE and socket.has_dualstack_ipv6():
            return [_socket(socket.AF_INET6, ("::", int(port)), dualstack=True)]
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as why:
        raise RefusedError(f"cannot listen on {bind}: {why}") from None
    for family, name in sorted({(family, str(where[0])) for family, *_, where in found}):
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
