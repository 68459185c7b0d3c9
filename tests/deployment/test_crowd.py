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


def port_of(one, hub):
    text = (one.of(hub) / "party.toml").read_text()
    return int(text.partition('listen = "127.0.0.1:')[2].partition('"')[0])


def audit(one, hub):
    lines = (one.of(hub) / "out" / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def narrow(tmp_path):
    one = Narrow(RunFile.parse(RUN.replace("150", "60")), tmp_path / "r", QUICK)
    yield one
    one.stop()


def test_two_thousand_strangers_do_not_disturb_a_run(narrow, crowd):
    """They are there before the members, who connect, drop and come back among them."""
    one = narrow
    run = one.prepare()
    hub, *others = run.placement.topology.parties
    one.start(hub)
    until(lambda: (one.of(hub) / "out" / "audit.jsonl").exists(), SLOW)
    crowd(port_of(one, hub))
    for party in others:
        one.start(party)
    for killed, round in ((ONE, 10), ("b", 30)):
        reach(one, hub, round)
        kill(one, killed)
        one.start(killed, "--resume")
    one.wait(SLOW)
    assert one.compare(run, 0.0).is_equal
    refused = [found["why"] for found in audit(one, hub) if found["event"] == "refused"]
    assert {"did not speak TLS", "made room for others"} <= {*refused}
    assert len(refused) < 100  # and not a line for each
