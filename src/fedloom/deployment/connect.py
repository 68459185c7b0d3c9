"""A party's connections, from its party file: whom it dials, who may dial it, which certificates it
accepts, and over which transport. The one file of deployment that knows gRPC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..config.convert import table
from ..core.errors import DataError, SettingError
from ..core.files import read_secret
from ..core.registry import transports
from ..core.topology import SERVER, Client, Party, Topology, title
from ..fabric.permits import Permits
from ..transports.grpc.tls import ClockDifference, Identity, ListenSettings, PeerAddress, clock_of
from ..transports.grpc.transport import GrpcTransport
from ..transports.links.party import Note, PartyTransport, TransportOptions
from ..transports.links.position import Position
from .keys.allow_list import Gate
from .keys.certificates import Certificate, host_name
from .party_file import PartyFile

GRPC = "grpc"
TABLE = "transport"  # of the party file


@dataclass(frozen=True)
class Connections:
    """Of one party of a federation."""

    own: PartyFile
    topology: Topology

    def transport(
        self, run: str, permits: Permits, note: Note, position: Position | None = None
    ) -> PartyTransport:
        """For the run with this fingerprint; not opened yet."""
        own, name = self.own, self.own.party.transport
        own.refuse_open_secrets()
        options = TransportOptions(
            timing=own.waits.timing,
            permits=permits,
            cap=own.limits.frame,
            bounds=own.limits.bounds,
            position=position,
            note=note,
        )
        settings = table(transports.settings(name), own.transport, (TABLE,))
        made: PartyTransport = transports[name](self, run, options, **settings)
        return made

    @property
    def me(self) -> Party:
        """This party."""
        return self.own.me

    @property
    def dials(self) -> list[Party]:
        """Whom this party dials."""
        return peers(self.topology, self.own.me)[0]

    @property
    def expected(self) -> list[Party]:
        """Who dials it."""
        return peers(self.topology, self.own.me)[1]

    @property
    def identity(self) -> Identity:
        keys = self.own.keys
        return Identity(read(Path(keys.certificate)), read_secret(Path(keys.key), "key"))

    def ca(self, name: str) -> Certificate:
        if name not in self.own.peers:
            raise SettingError(f"the party file has no [peers.{name}]")
        return Certificate.read(Path(self.own.peers[name].ca))

    def address(self, name: str) -> PeerAddress:
        ca, target = self.ca(name).pem(), self.own.peers[name].address
        if target is None:
            me = title(self.own.me)
            raise SettingError(f"[peers.{name}]: {me} dials it, and needs its address")
        return PeerAddress(target, ca, host_name(name), self._gate([name]))

    def _gate(self, silos: Iterable[str]) -> Gate:
        """Which parties of these organisations are accepted; the allow-list is read when it
        changes."""
        return Gate(Path(self.own.keys.allow), {silo: self.ca(silo) for silo in silos})

    def door(self) -> ListenSettings | None:
        """Where it listens, if it does."""
        expected, listen = self.expected, self.own.listen
        if listen is None:
            return None
        silos = sorted({party.silo if isinstance(party, Client) else party for party in expected})
        pem = b"".join(self.ca(silo).pem() for silo in silos)
        return ListenSettings(listen, self._gate(silos), pem, tuple(expected))

    def clock_of(self, name: str, within: float) -> ClockDifference:
        """How far a peer's clock is from ours."""
        return clock_of(self.address(name), self.identity, within)


@transports.register(GRPC)
def over_grpc(links: Connections, run: str, options: TransportOptions) -> PartyTransport:
    """Parties dial each other, with mutual TLS."""
    dials = {peer: links.address(str(peer)) for peer in links.dials}
    own = links.own
    return GrpcTransport(own.me, run, links.identity, dials=dials, door=links.door(), **options)


def listeners(topology: Topology) -> list[str]:
    """Hubs, and the server, in their order: of two, the later dials the earlier."""
    return [*topology.silos, *([SERVER] if topology.server else [])]


def peers(topology: Topology, party: Party) -> tuple[list[Party], list[Party]]:
    """Whom a party dials, and who dials it."""
    if party not in topology.parties:
        raise SettingError(f"{title(party)} has no part in this run")
    if isinstance(party, Client):
        return [party.silo], []
    order = listeners(topology)
    place = order.index(party)
    own = topology.of(party) if party != SERVER else ()
    return [*order[:place]], [*own, *order[place + 1 :]]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}") from None
