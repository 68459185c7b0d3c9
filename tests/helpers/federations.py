"""Federations in one process whose parties talk over real connections on this machine."""

from concurrent.futures import ThreadPoolExecutor

from fedloom.core.topology import SERVER, Client
from fedloom.deployment.keys.allow_list import Gate, write_list
from fedloom.deployment.keys.certificates import Authority, Certificate, host_name, save
from fedloom.engines.party.engine import PartyEngine
from fedloom.engines.party.timeouts import Waits
from fedloom.fabric.schedule import Everyone
from fedloom.runs.loop import play
from fedloom.transports.grpc.tls import Identity, ListenSettings, PeerAddress
from fedloom.transports.grpc.transport import GrpcTransport
from fedloom.transports.links.party import Timing

QUICK = Timing(beat=0.1, silence=1.0, linger=5.0)
RUN = "a" * 64


class Keys:
    """An authority for each organisation, and a certificate for each party."""

    def __init__(self, folder, topology):
        self.folder, self.topology = folder, topology
        self.silos = [*topology.silos, *([SERVER] if topology.server else [])]
        self.authorities = {silo: Authority.new(silo, 30) for silo in self.silos}
        self.made = {party: self.issue(party) for party in topology.parties}
        write_list(self.allow, {str(p): [self.certificate(p).fingerprint] for p in self.made})

    @property
    def allow(self):
        return self.folder / "allow.toml"

    def issue(self, party, by=None, days=30):
        authority = self.authorities[by or (party.silo if isinstance(party, Client) else party)]
        path = save(self.folder, str(party).replace("/", "-"), *authority.issue(party, days))
        return Identity(path.read_bytes(), path.with_suffix(".key").read_bytes())

    def certificate(self, party):
        return Certificate.parse(self.made[party].certificate)

    def ca(self, silo):
        return self.authorities[silo].certificate

    def door(self, me):
        """Its clients, and the hubs that come later in the order."""
        later = self.silos[self.silos.index(me) + 1 :]
        own = self.topology.of(me) if me != SERVER else ()
        cas = {silo: self.ca(silo) for silo in (me, *later)}
        pem = b"".join(ca.pem() for ca in cas.values())
        return ListenSettings("127.0.0.1:0", Gate(self.allow, cas), pem, (*own, *later))

    def address(self, party, port):
        gate = Gate(self.allow, {party: self.ca(party)})
        return PeerAddress(f"127.0.0.1:{port}", self.ca(party).pem(), host_name(party), gate)


def opened(keys, timing=QUICK, notes=None, run=RUN, only=None):
    """A transport for every party, connected."""
    transports, ports = {}, {}
    for hub in keys.silos:
        earlier = keys.silos[: keys.silos.index(hub)]
        dials = {other: keys.address(other, ports[other]) for other in earlier}
        note = _noting(hub, notes)
        transports[hub] = GrpcTransport(
            hub, run, keys.made[hub], dials=dials, door=keys.door(hub), timing=timing, note=note
        )
        transports[hub].open()
        ports[hub] = transports[hub].port
    for silo in keys.topology.silos:
        for client in keys.topology.of(silo):
            transports[client] = dialling(keys, client, ports[silo], timing, notes, run)
    return transports


def dialling(keys, client, port, timing=QUICK, notes=None, run=RUN, identity=None):
    """A client's transport, on its way to its hub."""
    made = GrpcTransport(
        client,
        run,
        identity or keys.made[client],
        dials={client.silo: keys.address(client.silo, port)},
        timing=timing,
        note=_noting(client, notes),
    )
    made.open()
    return made


def _noting(party, notes):
    if notes is None:
        return lambda event, **facts: None
    return lambda event, **facts: notes.append((party, event, facts))


def run_connected(transports, algorithm, task, shapes, placement, rounds, seed=3, waits=None):
    """Every party in a thread of its own: {party: (engine, state or error)}."""

    def party(me):
        fed = PartyEngine(
            task,
            shapes,
            placement.view([me]),
            hosted=[me],
            transport=transports[me],
            seed=seed,
            schedule=Everyone(),
            waits=waits or Waits(patience=20.0),
        )
        state = None
        try:
            for _, state in play(fed, algorithm, rounds):  # noqa: B007
                pass
        except Exception as problem:
            state = problem
        finally:
            transports[me].close()
        return fed, state

    with ThreadPoolExecutor(len(transports)) as pool:
        running = {me: pool.submit(party, me) for me in transports}
        return {me: task.result(120) for me, task in running.items()}
