"""The conformance suite over every transport there is: in memory, carried, gRPC."""

import threading
from contextlib import contextmanager

import pytest

from fedloom.deployment.rehearsal import free_ports
from fedloom.testing.transports import LINK_CHECKS, TRANSPORT_CHECKS, connected
from fedloom.transports.carrier.carried import CarriedTransport
from fedloom.transports.carrier.memory import Faults, PostOffice
from fedloom.transports.grpc.transport import GrpcTransport
from fedloom.transports.memory import MemoryTransport
from tests.helpers.federations import Keys
from tests.helpers.proxy import Proxy

BAD = Faults(lose=0.1, repeat=0.1, delay=0.01)


class Carried:
    """Over a post office in memory."""

    faults, largest = Faults(), 1 << 20

    def __init__(self, topology):
        self.office = PostOffice(self.faults)

    def transport(self, me, run, dials, expected, **rules):
        post = self.office.carrier(me)
        rules["largest"] = self.largest
        return CarriedTransport(me, run, post, dials=dials, expected=expected, **rules)

    def cut(self, one, other):
        self.office.disconnect(one, other)
        threading.Timer(0.03, self.office.reconnect, (one, other)).start()


class BadlyCarried(Carried):
    """Exchanges are lost, repeated and late, and small."""

    faults, largest = BAD, 1 << 18


@pytest.fixture
def grpc(tmp_path):
    proxies = []

    class Grpc:
        """On this machine, each connection through a proxy."""

        def __init__(self, topology):
            self.keys, self.proxies = Keys(tmp_path, topology), {}
            self.ports = dict(zip(self.keys.silos, free_ports(len(self.keys.silos)), strict=True))

        def transport(self, me, run, dials, expected, **rules):
            door = None
            if me in self.ports:
                door = self.keys.door(me)
                door = type(door)(f"127.0.0.1:{self.ports[me]}", door.gate, door.cas, door.expected)
            to = {peer: self.keys.address(peer, self.proxy(me, peer).port) for peer in dials}
            return GrpcTransport(me, run, self.keys.made[me], dials=to, door=door, **rules)

        def proxy(self, one, other):
            pair = frozenset((one, other))
            if pair not in self.proxies:
                self.proxies[pair] = Proxy(self.ports[other])
                proxies.append(self.proxies[pair])
            return self.proxies[pair]

        def cut(self, one, other):
            self.proxies[frozenset((one, other))].cut()

    yield Grpc
    for proxy in proxies:
        proxy.close()


@contextmanager
def in_memory(topology):
    yield dict.fromkeys(topology.parties, MemoryTransport(topology.parties))


@pytest.fixture(params=["carried", "badly carried", "grpc"])
def make(request, grpc):
    return {"carried": Carried, "badly carried": BadlyCarried, "grpc": grpc}[request.param]


@pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
def test_in_memory(check):
    check(in_memory)


@pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
def test_what_an_engine_asks(check, make):
    check(connected(make))


@pytest.mark.parametrize("check", LINK_CHECKS.values(), ids=LINK_CHECKS)
def test_what_parties_ask(check, make):
    check(make)
