"""Two thousand strangers around a hub that may open a thousand files: the run goes on."""

import json
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedloom.config.runfile import RunFile
from fedloom.core.topology import Client
from fedloom.deployment.rehearsal import Rehearsal
from tests.deployment.test_processes import ONE, QUICK, RUN, SLOW, kill, reach
from tests.transports.test_disturbed import until

FILES = 1024
PROGRAM = Path(__file__).parents[1] / "helpers" / "crowd.py"
CROWD = {"silent": 1900, "slow": 60, "rubbish": 40}


class Narrow(Rehearsal):
    """Hubs may open so many files only."""

    def launch(self, party, words, env):
        if isinstance(party, Client):
            return super().launch(party, words, env)
        command = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", sys.executable]
        with (self.of(party) / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, "-m", "fedloom", *words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


@pytest.fixture
def crowd():
    """Around a port; returns when all are there."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * sum(CROWD.values()):
        pytest.skip("this machine lets no process open as many connections")
    with ExitStack() as stack:

        def gather(port):
            command = [sys.executable, str(PROGRAM), str(port)]
            process = stack.enter_context(
                subprocess.Popen([*command, *map(str, CROWD.values())], stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            assert process.stdout.readline() == b"here\n"

        yield gather


def port_of(federation, hub):
    text = (federation.of(hub) / "party.toml").read_text()
    return int(text.partition('listen = "127.0.0.1:')[2].partition('"')[0])


def audit(federation, hub):
    lines = (federation.of(hub) / "out" / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def narrow(tmp_path):
    federation = Narrow(RunFile.parse(RUN.replace("150", "60")), tmp_path / "r", QUICK)
    yield federation
    federation.stop()


def test_two_thousand_strangers_do_not_disturb_a_run(narrow, crowd):
    """They are there before the members, who connect, drop and come back among them."""
    federation = narrow
    run = federation.prepare()
    hub, *others = run.placement.topology.parties
    federation.start(hub)
    until(lambda: (federation.of(hub) / "out" / "audit.jsonl").exists(), SLOW)
    crowd(port_of(federation, hub))
    for party in others:
        federation.start(party)
    for killed, round in ((ONE, 10), ("b", 30)):
        reach(federation, hub, round)
        kill(federation, killed)
        federation.start(killed, "--resume")
    federation.wait(SLOW)
    assert federation.compare(run, 0.0).is_equal
    refused = [entry["why"] for entry in audit(federation, hub) if entry["event"] == "refused"]
    assert {"did not speak TLS", "made room for others"} <= {*refused}
    assert len(refused) < 100  # and not a line for each
