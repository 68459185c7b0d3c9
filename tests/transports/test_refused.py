"""A member that sends what its hub does not take, over real connections: it may come back and send
more, and its hub does not grow by it."""

import gc
import tracemalloc

import grpc
import pytest
import torch

from fedloom.core.topology import Client, Topology
from fedloom.fabric.kinds import Key, Message
from fedloom.fabric.permits import Permits, route_of
from fedloom.transports import wire
from fedloom.transports.grpc.tls import METHOD
from fedloom.transports.grpc.transport import GrpcTransport
from fedloom.transports.links.link import NOTHING, FramePart, Hello, pack
from fedloom.transports.links.party import Timing
from fedloom.transports.links.party_state import DIFFERENT
from tests.helpers.federations import RUN, Keys
from tests.transports.test_disturbed import until

SMALL = Topology({"ash": ("0", "1")})
ONE = Client("ash", "1")
MEMBER = "7" * 16  # the process that a member says it is
WIDE = "\U0001f600"  # a character that takes as much room as any


def frame(kind, payload):
    return wire.encode(Message(Key(0, 1), kind, ONE, "ash", payload), RUN)


def whole(data):
    return [pack(FramePart(0, memoryview(data)))]


def of_another_form(number):
    """The kind is agreed on; names and shapes of tensors are new each time."""
    payload = {f"{number} {at}": torch.zeros(1 + (at == number)) for at in range(1000)}
    return whole(frame("update", payload))


def of_another_kind(number):
    """Refused with a word that says the kind, which is as long as can be told, and new."""
    return whole(frame(f"{number} {WIDE * 1000}", torch.zeros(1)))


def changed_on_its_way(number):
    data = frame("update", {f"{number}": torch.zeros(200_000)})
    return whole(data[:-1] + bytes([data[-1] ^ 1]))


def pieces_that_do_not_fit(number):
    piece = memoryview(bytes(900_000))
    return [pack(FramePart(2_000_000, piece)), pack(FramePart(number, piece))]


def no_packet(number):
    return [bytes([number % 256]) * 500_000]


FORMS = {  # how often each is sent
    of_another_form: 15,
    of_another_kind: DIFFERENT + 100,
    changed_on_its_way: 10,
    pieces_that_do_not_fit: 10,
    no_packet: 10,
}


class Hub:
    """Takes updates of no tensors; and a member's connection to it."""

    def __init__(self, keys):
        permits = Permits({route_of("update", ONE, "ash"): frozenset()})
        rules = {"timing": Timing(beat=0.1, silence=1.0, linger=0.1), "permits": permits}
        self.transport = GrpcTransport("ash", RUN, keys.made["ash"], door=keys.door("ash"), **rules)
        self.transport.open()
        address, own = keys.address("ash", self.transport.port), keys.made[ONE]
        secure = grpc.ssl_channel_credentials(address.ca, own.key, own.certificate)
        options = [("grpc.ssl_target_name_override", address.host_name)]
        self.channel = grpc.secure_channel(address.target, secure, options)

    def refuses(self, packets):
        """What a member says after a greeting; how its hub ends the call."""
        hello = pack(Hello(RUN, MEMBER, NOTHING, 0))
        call = self.channel.stream_stream(METHOD)(iter([hello, *packets]), timeout=20)
        with pytest.raises(grpc.RpcError) as problem:
            list(call)
        return problem.value.code() == grpc.StatusCode.PERMISSION_DENIED

    def close(self):
        self.channel.close()
        self.transport.close()


@pytest.fixture
def hub(tmp_path):
    made = Hub(Keys(tmp_path, SMALL))
    yield made
    made.close()


def test_a_member_cannot_grow_its_hub(hub):
    """By no more than 1 MiB in all, whatever it sends and however often."""
    said = {form: [form(number) for number in range(count)] for form, count in FORMS.items()}
    for form in FORMS:  # what is made once is not counted
        assert hub.refuses(form(-1 if form is not pieces_that_do_not_fit else 99)), form
    gc.collect()
    tracemalloc.start()
    try:
        for form, pieces in said.items():
            for packets in pieces:
                assert hub.refuses(packets), form
        until(lambda: not hub.transport.health().present)
        gc.collect()
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory < 1 << 20
    assert hub.transport.links[ONE].counts["refused"] >= sum(FORMS.values()) - FORMS[no_packet]
