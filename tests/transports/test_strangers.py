"""Who connects without being let in: strangers take no more room than there is, and keep nobody
from coming in."""

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from fedloom.core.errors import SettingError
from fedloom.core.topology import Client, Topology
from fedloom.transports.grpc import listener
from fedloom.transports.grpc.listener import StrangerLimits
from tests.deployment.test_processes import SLOW
from tests.helpers.federations import Keys, dialling, opened
from tests.transports.test_disturbed import joined, until

SMALL = Topology({"ash": ("0", "1")})
FIRST = Client("ash", "1")


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """One hub and its clients, little patience and little room; and what they noted."""
    monkeypatch.setattr(listener, "PATIENCE", 0.5)
    monkeypatch.setattr(
        StrangerLimits, "beside", lambda members: StrangerLimits(silent=8, handshaking=4)
    )
    keys, notes = Keys(tmp_path, SMALL), []
    transports = opened(keys, notes=notes)
    joined(transports, notes)
    yield keys, transports, notes
    closing = [threading.Thread(target=transport.close) for transport in transports.values()]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(30)


def stranger(port, *said, source="127.0.0.1"):
    connection = socket.create_connection(("127.0.0.1", port), 5, (source, 0))
    for some in said:
        connection.sendall(some)
    return connection


def is_cut_off(connection, within=5.0):
    connection.settimeout(within)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except (TimeoutError, BlockingIOError):
        return False


def refused(notes, why):
    return [facts for _, event, facts in notes if event == "refused" and why in facts["why"]]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([], "said nothing within"),
        ([b"\x16\x03"], "was not let in within"),
        ([b"\x16\x03\x01\x00\x05hello"], "did not get through TLS"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "did not speak TLS"),
    ],
)
def test_a_stranger_is_cut_off_and_noted(federation, said, why):
    _, transports, notes = federation
    connection = stranger(transports["ash"].port, *said)
    until(lambda: refused(notes, why))
    assert refused(notes, why)[0]["address"] == "127.0.0.1"
    if "TLS" not in why or not said[0].startswith(b"\x16"):
        assert is_cut_off(connection)
    until(lambda: transports["ash"].strangers == 0)


def test_who_is_let_in_stays(federation):
    """Longer than anybody may take to come in."""
    _, transports, notes = federation
    with stranger(transports["ash"].port):
        until(lambda: refused(notes, "said nothing"))
    with stranger(transports["ash"].port):
        until(lambda: refused(notes, "said nothing")[-1].get("times") == 2)
    assert not [event for _, event, _ in notes if event == "left"]


def test_who_calls_twice_stays_when_one_call_has_ended(federation):
    transports, notes = federation[1:]
    hub = transports["ash"]
    listener = hub._peering.listener

    async def call():
        for peer in listener._incoming:  # peers that are connected
            with listener.admitted(peer):
                pass
        return listener.strangers

    assert len(listener._incoming) == 2
    assert asyncio.run_coroutine_threadsafe(call(), hub._loop).result(5) == 0
    assert not [event for _, event, _ in notes if event == "left"]


def test_where_it_is_full_the_address_with_the_most_loses_its_oldest(federation):
    _, transports, notes = federation
    port = transports["ash"].port
    other = stranger(port, source="127.0.0.2")
    crowd = [stranger(port) for _ in range(7)]
    until(lambda: transports["ash"].strangers == 8)
    crowd.append(stranger(port))
    until(lambda: refused(notes, "made room"))
    assert [facts["address"] for facts in refused(notes, "made room")] == ["127.0.0.1"]
    assert is_cut_off(crowd[0])
    assert not any(is_cut_off(connection, 0.0) for connection in (other, *crowd[1:]))


def test_a_client_comes_in_through_a_crowd(federation):
    """Of the same address, and always full."""
    keys, transports, _ = federation
    port, over = transports["ash"].port, threading.Event()

    def press():
        connections = []
        while not over.wait(0.005):
            connections = [*connections[-20:], stranger(port)]

    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        until(lambda: transports["ash"].strangers >= 8)
        transports[FIRST].close()
        notes = []
        transports[FIRST] = dialling(keys, FIRST, port, notes=notes)
        until(lambda: any(event == "joined" for _, event, _ in notes))
    finally:
        over.set()
        pressing.join()


def test_few_files_are_said_before_anybody_comes(monkeypatch):
    monkeypatch.setattr(listener, "raised_limit", lambda: 1024)
    assert StrangerLimits.beside(4) == StrangerLimits(442, 128)
    assert StrangerLimits.beside(200) == StrangerLimits(148, 49)
    with pytest.raises(
        SettingError, match=r"1024 open files are too few .* 300 parties: allow 2056"
    ):
        StrangerLimits.beside(300)


def test_all_members_may_come_back_at_once(monkeypatch):
    monkeypatch.setattr(listener, "raised_limit", lambda: 1 << 16)
    assert StrangerLimits.beside(4) == StrangerLimits(512, 128)
    assert StrangerLimits.beside(1000) == StrangerLimits(2000, 2000)


def test_the_limit_of_files_is_raised_as_far_as_may_be():
    code = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (300, 700))\n"
    code += "from fedloom.transports.grpc.listener import raised_limit as raised\n"
    code += "print(raised(), raised(), r.getrlimit(r.RLIMIT_NOFILE))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SLOW
    )
    assert output.stdout == "700 700 (700, 700)\n"
