"""A network that comes apart: two silos in network namespaces of their own, and a cable between
them on which packets vanish without a word. Where the machine permits no namespaces, the dropping
proxy (test_disturbed.py) is all there is."""

import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from fedloom.config.runfile import RunFile
from fedloom.core.errors import LostError
from fedloom.core.topology import Client
from fedloom.deployment.rehearsal import Rehearsal
from tests.deployment.test_processes import ONE, QUICK, RUN, SLOW, begin, reach
from tests.deployment.test_quorum import events, places, until

SIDES = {"a": ("west", "10.77.0.1"), "b": ("east", "10.77.0.2")}
SLOW_TIMES = 6
NOBODY = "02:00:00:00:00:99"
FORGETFUL = """
table ip firewall {
  ct timeout short { protocol tcp; l3proto ip; policy = { established: 1 }; }
  chain from { type filter hook prerouting priority mangle; ct timeout set "short"; }
  chain to { type filter hook output priority mangle; ct timeout set "short"; }
  chain judging {
    ct state established accept
    tcp flags & (fin | syn | rst | ack) == syn accept
    tcp flags & rst == rst accept
    meta l4proto tcp WHAT
  }
  chain in { type filter hook input priority filter; iifname "west" jump judging; }
  chain out { type filter hook output priority filter; oifname "west" jump judging; }
}
"""


class Cable:
    """Two namespaces; processes hold them, and `enter` is the command that goes into one."""

    def __init__(self, stack):
        self._stack, self.enter = stack, {}
        self._hold("a", ["unshare", "-rn"])
        self._hold("b", [*self.enter["a"], "unshare", "-n"])
        (west, _), (east, _) = SIDES.values()
        self.at("a", "link", "add", west, "type", "veth", "peer", "name", east)
        self.at("a", "link", "set", east, "netns", self.enter["b"][2])
        for silo, (name, address) in SIDES.items():
            self.at(silo, "link", "set", "lo", "up")
            self.at(silo, "address", "add", f"{address}/24", "dev", name)
            self.at(silo, "link", "set", name, "up")

    def _hold(self, silo, unshare):
        holder = self._stack.enter_context(
            subprocess.Popen(
                [*unshare, "sh", "-c", "echo ready; exec sleep 600"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        )
        self._stack.callback(holder.kill)
        if holder.stdout.readline() != b"ready\n":
            raise OSError("unshare -n is not permitted")
        own = ["nsenter", "-t", str(holder.pid), "-U", "-n", "--preserve-credentials"]
        self.enter[silo] = own

    def at(self, silo, *words):
        subprocess.run([*self.enter[silo], "ip", *words], check=True, capture_output=True)

    def forget(self, what):
        """A firewall at a's end that forgets a connection once it has been quiet for a second:
        what comes then is dropped, or answered by a reset."""
        words = {"dropped": "drop", "reset": "reject with tcp reset"}
        rules = FORGETFUL.replace("WHAT", words[what]).encode()
        subprocess.run([*self.enter["a"], "nft", "-f", "-"], input=rules, check=True)

    def cut(self):
        """Packets go to a card that nobody has; nobody is told."""
        for (silo, (name, _)), (_, other) in zip(
            SIDES.items(), reversed(SIDES.values()), strict=True
        ):
            self.at(silo, "neighbour", "replace", other, "lladdr", NOBODY, "dev", name)

    def mend(self):
        for (silo, (name, _)), (_, other) in zip(
            SIDES.items(), reversed(SIDES.values()), strict=True
        ):
            self.at(silo, "neighbour", "delete", other, "dev", name)


class Apart(Rehearsal):
    """Each silo on its own side."""

    cable = None

    def prepare(self):
        run, ports = super().prepare(), {}
        for silo, (_, address) in SIDES.items():
            (ports[silo],) = re.findall(r'listen = "127.0.0.1:(\d+)"', self._text(silo))
            for party in run.placement.topology.parties:
                moved = self._text(party).replace(
                    f"127.0.0.1:{ports[silo]}", f"{address}:{ports[silo]}"
                )
                (self.of(party) / "party.toml").write_text(moved)
        return run

    def _text(self, party):
        return (self.of(party) / "party.toml").read_text()

    def launch(self, party, words, env):
        silo = party.silo if isinstance(party, Client) else party
        command = [*self.cable.enter[silo], sys.executable, "-m", "fedloom", *words]
        with (self.of(party) / "log").open("ab") as log:
            return subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )


@pytest.fixture
def apart(tmp_path):
    with ExitStack() as stack:
        if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
            pytest.skip("no unshare, nsenter or ip here: no network namespaces")
        try:
            cable = Cable(stack)
        except (OSError, subprocess.CalledProcessError) as problem:
            pytest.skip(f"this machine permits no network namespaces: {problem}")

        def make(text=RUN, **waits):
            federation = Apart(RunFile.parse(text), tmp_path / "r", {**QUICK, **waits})
            federation.cable = cable
            stack.callback(federation.stop)
            return federation

        yield make


def seconds_until_left(federation, hub, peer, cut):
    """From the cut until a hub has given up the connection."""

    def times():
        left = [event for event in events(federation, hub) if event["event"] == "left"]
        times = [datetime.fromisoformat(event["time"]) for event in left if event["peer"] == peer]
        return [(time - cut).total_seconds() for time in times if time > cut]

    until(times)
    return times()[0]


def test_packets_that_vanish_for_a_while_change_nothing(apart):
    """Noticed by silence (2 s), looked for with every sign of life; then the run goes on."""
    federation = apart()
    run = begin(federation)
    reach(federation, "a", 20)
    cut = datetime.now(UTC)
    federation.cable.cut()
    assert 1.0 < seconds_until_left(federation, "a", "b", cut) < 8.0
    assert 1.0 < seconds_until_left(federation, "b", "a", cut) < 8.0
    federation.cable.mend()
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal


@pytest.mark.parametrize("what", ["dropped", pytest.param("reset", marks=pytest.mark.slow)])
def test_a_firewall_that_forgets_quiet_connections(apart, what):
    """Hubs have nothing to say while a client is slow, and beat every two seconds: after one, the
    firewall has forgotten their connection. It is noticed by silence (2 s); the next one beats
    oftener, and is remembered."""
    federation = apart(RUN.replace("150", "300"), beat=2.0)
    try:
        federation.cable.forget(what)
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"no firewall here (nft, conntrack): {problem}")
    run = begin(federation)
    reach(federation, "a", 20)
    for _ in range(SLOW_TIMES):
        federation.processes[ONE].send_signal(signal.SIGSTOP)
        time.sleep(2.5)  # as long as it takes to be forgotten
        federation.processes[ONE].send_signal(signal.SIGCONT)
        rounds = len(places(federation, "a", "round"))
        until(lambda: len(places(federation, "a", "round")) > rounds)  # noqa: B023
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    for hub, other in (("a", "b"), ("b", "a")):
        lost = places(federation, hub, "left", peer=other, meant=False)
        assert 1 <= len(lost) <= SLOW_TIMES / 2


@pytest.mark.slow
def test_a_network_that_stays_apart_ends_the_run_on_both_sides(apart):
    federation = apart(patience=4.0)
    begin(federation)
    reach(federation, "a", 20)
    federation.cable.cut()
    with pytest.raises(LostError):
        federation.wait(90)  # so long at most
    assert {process.returncode for process in federation.processes.values()} == {10}
    assert "from hub b, of which nothing was heard for 8 s" in federation.last_words("a")
    assert "from hub a, of which nothing was heard for 8 s" in federation.last_words("b")
