"""Broken connections, silence, strangers: what a run shrugs off, and what it names."""

import threading
import time
from collections import Counter
from dataclasses import replace

import grpc
import pytest

from fedloom import TDCD, Run
from fedloom.core.errors import AbortedError, LostError, RefusedError
from fedloom.core.topology import Client
from fedloom.deployment.keys.allow_list import read_list, write_list
from fedloom.deployment.keys.certificates import Authority
from fedloom.engines.party.timeouts import Waits
from fedloom.testing import placement, task
from fedloom.transports.links.party import Timing
from tests.helpers.federations import QUICK, Keys, dialling, opened, run_connected
from tests.helpers.proxy import Proxy
from tests.transports.test_grpc import assert_same

ALGORITHM = TDCD(local_steps=2, lr=0.2, batch=20)
ONE = Client("ash", "1")
TLS = "did not get through TLS"


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path, placement().topology)


@pytest.fixture
def notes():
    return []


def right(rounds):
    run = Run(ALGORITHM, task(), placement(), engine="reference", precision="float64", seed=3)
    return run.fit(rounds)


def live(transports, wanted, rounds, **options):
    given = (ALGORITHM, wanted.task, wanted.shapes, placement(), rounds)
    return run_connected(transports, *given, **options)


def until(ready, seconds=20):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def refusals(notes, party):
    return [facts["why"] for who, event, facts in notes if who == party and event == "refused"]


def joined(transports, notes):
    """Everyone is connected."""
    links = sum(len(transport.links) for transport in transports.values())
    until(lambda: sum(event == "joined" for _, event, _ in notes) >= links)


def close_all(transports):
    for transport in transports.values():
        threading.Thread(target=transport.close).start()


def test_broken_connections_change_nothing(keys, notes):
    """All connections through a proxy that cuts them again and again."""
    wanted, proxies = right(12), []

    class Through(Keys):
        def address(self, party, port):
            proxies.append(Proxy(port))
            return super().address(party, proxies[-1].port)

    keys.__class__ = Through
    transports = opened(keys, notes=notes)
    stop = threading.Event()

    def cutting():
        while not stop.wait(0.15):
            for proxy in proxies:
                proxy.cut()

    cutter = threading.Thread(target=cutting)
    cutter.start()
    try:
        threading.Timer(1.5, stop.set).start()
        assert_same(live(transports, wanted, 12), wanted)
    finally:
        stop.set()
        cutter.join()
        for proxy in proxies:
            proxy.close()
    assert sum(event == "left" and not facts["meant"] for _, event, facts in notes) > 5


def test_packets_that_vanish_are_noticed(keys, notes):
    """No reset, no error, only silence: noticed within the bound, and the run goes on after."""
    wanted, proxies = right(3), {}

    class Through(Keys):
        def address(self, party, port):
            proxies[party] = Proxy(port)
            return super().address(party, proxies[party].port)

    keys.__class__ = Through
    transports = opened(keys, notes=notes)
    joined(transports, notes)
    notes.clear()
    for proxy in proxies.values():
        proxy.swallowing = True
    began = time.monotonic()
    until(lambda: any(event == "left" for _, event, _ in notes))
    assert time.monotonic() - began < 3.0  # silence 1 s, looked at every 0.1 s
    for proxy in proxies.values():
        proxy.swallowing = False
        proxy.cut()
    assert_same(live(transports, wanted, 3), wanted)
    for proxy in proxies.values():
        proxy.close()


@pytest.mark.parametrize("resets", [False, True], ids=["dropped", "reset"])
def test_a_firewall_that_forgets_quiet_connections(keys, notes, resets):
    """One that is quiet for half a beat is forgotten, and so is each that follows it: the link
    beats oftener, and lives."""
    wanted, proxies = right(4), []

    class Through(Keys):
        def address(self, party, port):
            proxies.append(Proxy(port, idle=0.4, resets=resets))
            return super().address(party, proxies[-1].port)

    keys.__class__ = Through
    transports = opened(keys, Timing(beat=0.8, silence=1.6, linger=5.0), notes)
    joined(transports, notes)
    for party, transport in transports.items():
        if isinstance(party, Client):
            transport.send = slowly(transport.send)
    assert_same(live(transports, wanted, 4), wanted)
    for proxy in proxies:
        proxy.close()
    lost = Counter(
        (who, facts["peer"])
        for who, event, facts in notes
        if event == "left" and not facts["meant"]
    )
    assert lost
    assert max(lost.values()) <= 4  # of eight quiet times, and more at first


def slowly(send):
    """A client computes for longer than the firewall remembers."""

    def after_a_while(message):
        time.sleep(0.6)
        send(message)

    return after_a_while


def strangers(keys):
    """{what: (identity, why the hub says no, and whether TLS itself does)}."""
    other = Authority.new("ash", 30)
    keys.authorities["pine"] = other
    listed = read_list(keys.allow)
    yield "a CA of the same name", ONE, keys.issue(ONE, by="pine"), TLS
    keys.authorities["ash-again"] = keys.authorities["ash"]
    yield "not on the list", ONE, keys.issue(ONE, by="ash-again"), "not on the allow-list"
    yield "right CA, wrong silo", ONE, keys.issue(ONE, by="birch"), "not from the CA of ash"
    yield "another silo's client", Client("birch", "0"), None, "does not belong to hub ash"
    expired = keys.issue(ONE, days=-1)
    yield "expired", ONE, expired, TLS
    write_list(keys.allow, listed)


def test_strangers_are_refused_and_disturb_nobody(keys, notes):
    wanted = right(2)
    transports = opened(keys, notes=notes)
    joined(transports, notes)
    hub = transports["ash"]
    for what, party, identity, why in strangers(keys):
        rogue_notes = []
        rogue = dialling(
            keys,
            Client("ash", party.name),
            hub.port,
            notes=rogue_notes,
            identity=identity or keys.made[party],
        )
        until(lambda: any(why in text for text in refusals(notes, "ash")))  # noqa: B023
        if why == TLS:
            until(lambda: any(event == "unreachable" for _, event, _ in rogue_notes))  # noqa: B023
        else:
            with pytest.raises(RefusedError, match=why):
                until(lambda: rogue.mailbox(rogue.me).check())  # noqa: B023
        assert not any(link.boot for link in rogue.links.values()), what
        threading.Thread(target=rogue.close).start()
    assert_same(live(transports, wanted, 2), wanted)


def test_no_certificate_no_connection(keys, notes):
    transports = opened(keys, notes=notes)
    port = transports["ash"].port
    for channel in (
        grpc.insecure_channel(f"127.0.0.1:{port}"),
        grpc.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(keys.ca("ash").pem())
        ),
    ):
        with channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/fedloom.Federation/Talk")(b"", timeout=2)
        assert refused.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    until(lambda: any(TLS in text for text in refusals(notes, "ash")))
    close_all(transports)


def test_a_hub_that_is_another_is_not_believed(keys, notes):
    """A client knows its hub by CA and name, wherever the address leads."""
    transports = opened(keys, notes=notes)
    text = []
    lost = dialling(keys, ONE, transports["birch"].port, notes=text)
    until(lambda: any(event == "unreachable" for _, event, _ in text))
    assert not lost.links["ash"].boot
    close_all({**transports, "lost": lost})


def test_a_second_connection_is_refused_while_the_first_lives(keys, notes):
    wanted = right(2)
    transports = opened(keys, notes=notes)
    joined(transports, notes)
    twin = dialling(keys, ONE, transports["ash"].port)
    until(lambda: "it is connected already" in refusals(notes, "ash"))
    assert not twin.links["ash"].boot
    threading.Thread(target=twin.close).start()
    assert_same(live(transports, wanted, 2), wanted)


def test_another_run_file_is_refused(keys, notes):
    transports = opened(keys, notes=notes)
    joined(transports, notes)
    transports[ONE].close()
    until(lambda: any(event == "left" and facts["peer"] == str(ONE) for _, event, facts in notes))
    other = dialling(keys, ONE, transports["ash"].port, run="b" * 64)
    with pytest.raises(RefusedError, match="different runs: fingerprints aaaaaaaaaaaa and bbb"):
        until(lambda: other.mailbox(ONE).check())
    close_all({**transports, "other": other})


def test_revoked_while_it_runs(keys, notes):
    """An edit of the list cuts a connected client off; the others are told who is missing."""
    transports = opened(keys, notes=notes)
    joined(transports, notes)
    allowed = read_list(keys.allow)
    del allowed[str(ONE)]
    write_list(keys.allow, allowed)
    until(lambda: any("not on the allow-list" in text for text in refusals(notes, "ash")))
    wanted = right(1)
    ended = live(transports, wanted, 1, waits=Waits(patience=2.0))
    assert isinstance(ended[ONE][1], RefusedError)
    assert isinstance(ended["ash"][1], LostError)
    assert "client ash/1" in str(ended["ash"][1])


def test_an_abort_reaches_everyone_with_one_cause(keys):
    transports = opened(keys)
    wanted = right(1)
    broken = transports[Client("cedar", "0")]
    broken.send = lambda message: 1 / 0
    ended = live(transports, wanted, 2)
    causes = {str(state) for _, state in ended.values() if isinstance(state, AbortedError)}
    assert len(causes) == 1
    assert "client cedar/0: division by zero" in causes.pop()
    assert sum(isinstance(state, AbortedError) for _, state in ended.values()) == len(ended) - 1


def test_an_abort_reaches_who_is_cut_off_at_that_moment(keys, notes):
    """Who has ended waits for links that have just broken: nobody is left to wait by itself."""
    proxies = []

    class Through(Keys):
        def address(self, party, port):
            proxies.append(Proxy(port))
            return super().address(party, proxies[-1].port)

    keys.__class__ = Through
    transports = opened(keys, replace(QUICK, linger=30.0), notes=notes)
    joined(transports, notes)
    for proxy in proxies:
        proxy.swallowing = True
    hub = transports["ash"]
    until(lambda: not hub.health().present)
    hub.abort("enough")
    closing = threading.Thread(target=hub.close)
    closing.start()
    closing.join(QUICK.silence)
    assert closing.is_alive()
    for proxy in proxies:
        proxy.swallowing = False
        proxy.cut()
    until(lambda: {transport.cause for transport in transports.values()} == {"enough"})
    close_all(transports)
    closing.join(20)
    assert not closing.is_alive()  # everybody's goodbye has come
    for proxy in proxies:
        proxy.close()


def test_a_silent_client_is_named(keys):
    transports = opened(keys)
    wanted = right(1)
    gone = transports.pop(ONE)
    gone.close()
    ended = live(transports, wanted, 1, waits=Waits(patience=1.0))
    assert isinstance(ended["ash"][1], LostError)
    assert "client ash/1" in str(ended["ash"][1])
    others = [state for me, (_, state) in ended.items() if me != "ash"]
    assert all(isinstance(state, AbortedError) for state in others)
