"""How a party stands: the file, the command, the metrics."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from fedloom.cli.main import main
from fedloom.core.errors import DataError, LostError, SettingError
from fedloom.core.topology import Client
from fedloom.deployment.party.status import Progress, Status, read_status
from fedloom.deployment.rehearsal import free_ports
from fedloom.fabric.kinds import Key
from tests.transports.test_disturbed import until
from tests.transports.test_hardened import ONE, federation, keys  # noqa: F401


@pytest.fixture
def status(tmp_path, federation):  # noqa: F811
    transports, _ = federation
    (port,) = free_ports(1)
    progress = Progress(50)
    served = Status(tmp_path, "ash", progress, transports["ash"], f"127.0.0.1:{port}")
    yield served, progress, transports, f"http://127.0.0.1:{port}"
    served.close()


def test_it_says_who_is_there_and_who_is_awaited(tmp_path, status):
    status, progress, transports, _ = status
    for done in (1, 2, 3):
        progress.step(done)

    def waits():
        with pytest.raises(LostError):
            transports["ash"].mailbox("ash").take(ONE, Key(0, 1), "update", 4)

    waiting = threading.Thread(target=waits)
    waiting.start()
    until(lambda: status.now()["awaited"] == ["ash/1"])
    until(lambda: (tmp_path / "status.json").exists() and read_status(tmp_path)["awaited"])
    written = read_status(tmp_path)
    assert (written["round"], written["rounds"], written["awaited"]) == (3, 50, ["ash/1"])
    assert written["present"] == ["ash/0", "ash/1", "birch"]
    assert written["rate"] > 0
    waiting.join(20)
    assert not waiting.is_alive()
    until(lambda: status.now()["awaited"] == [])


def test_metrics_are_what_prometheus_reads(tmp_path, status):
    _, progress, transports, address = status
    progress.step(7)
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['fedloom_round{party="ash"}'] == "7"
    assert values['fedloom_connected{party="ash",peer="ash/1"}'] == "1"
    assert float(values['fedloom_sent_bytes_total{party="ash",peer="birch"}']) > 0
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {key.split("{")[0] for key in values} == named
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{address}/anything", timeout=10)
    with pytest.raises(SettingError, match="cannot listen"):
        Status(tmp_path, "ash", progress, transports["ash"], address.removeprefix("http://"))


def test_nobody_has_said_anything(tmp_path):
    with pytest.raises(DataError, match="no party has written its status"):
        read_status(tmp_path)


PARTY = """\
[party]
name = "bank/north"
agreement = "a.json"
rows = "r"
folder = "out"
[keys]
certificate = "c.pem"
key = "k.key"
allow = "allow.toml"
[peers.bank]
ca = "ca.pem"
"""


def test_the_command(tmp_path, capsys):
    (tmp_path / "party.toml").write_text(PARTY)
    now = {"party": str(Client("bank", "north")), "time": 0, "round": 4, "rounds": 9, "rate": 2.5}
    now |= {"over": False, "stopped": None, "awaited": ["bank"], "absent": [], "present": ["bank"]}
    now |= {"refused": 0, "links": {"bank": {"on the wire": 2000, "received": 10}}}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "status.json").write_text(json.dumps(now))
    assert main(["status", str(tmp_path / "party.toml")]) == 0
    output = capsys.readouterr().out
    assert "bank/north: not heard of for" in output
    assert "round 4 of 9, 2.50 rounds a second" in output
    assert "awaited: bank" in output
    assert main(["status", str(tmp_path / "party.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == now
