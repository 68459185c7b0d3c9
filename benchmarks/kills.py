"""`python -m benchmarks.kills`: a rehearsal on real data whose parties are killed at random.

Three organisations that know different things of 442 patients, each with a hub and two clients:
nine processes over mutual TLS. One or two at a time are killed by SIGKILL and started again, as
often as asked for: after a random pause whenever rounds are made again, and at times before that.
The model must be that of an undisturbed run bit for bit, and so must the ledger be, message by
message.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fedloom.config.runfile import RunFile
from fedloom.federation.topology import Client, Party
from fedloom.parties.rehearsal import Rehearsal

RUN = """\
[data]
name = "diabetes"

[partition]
vertical = "columns"
clients = 2

[partition.columns]
practice = ["age", "sex", "bmi", "bp"]
lab = ["s1", "s2", "s3"]
clinic = ["s4", "s5", "s6"]

[model]
name = "mlp"
hidden = [16]

[algorithm]
name = "{algorithm}"
local_steps = 5
lr = 0.01
batch = 100
rounds = {rounds}
"""
WAITS = {"start": 300.0, "patience": 240.0, "beat": 0.5, "silence": 5.0, "linger": 20.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2000, help="of the run that is disturbed")
    parser.add_argument("--algorithm", default="tdcd")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, default=3600.0, help="seconds, for all of it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = RUN.format(rounds=given.rounds, algorithm=given.algorithm)
        one = Rehearsal(RunFile.parse(text), Path(folder) / "rehearsal", WAITS)
        try:
            return disturb(one, given.kills, random.Random(given.seed), given.within)
        finally:
            one.stop()


def disturb(one: Rehearsal, wanted: int, draw: random.Random, within: float) -> int:
    run, began = one.prepare(), time.monotonic()
    parties = list(run.placement.topology.parties)
    for party in parties:
        one.start(party)
    kills: Counter[str] = Counter()
    pairs = 0
    while kills.total() < wanted:
        if draw.random() < 0.8:  # sometimes also while some are still starting
            await_rounds(one, run.placement.topology.silos[0], 2)
        time.sleep(draw.uniform(0.0, 1.0))
        chosen = draw.sample(parties, draw.choice([1, 1, 2]))
        if any(process.poll() is not None for process in one.processes.values()):
            print("the run ended before it was killed so often: ask for more rounds")
            break
        for party in chosen:
            one.processes[party].send_signal(signal.SIGKILL)
        pairs += len(chosen) == 2
        time.sleep(draw.uniform(0.0, 0.5))
        for party in chosen:
            one.processes[party].wait()
            kills[kind(party)] += 1
            one.start(party, "--resume")
        print(f"{kills.total()} kills, {time.monotonic() - began:.0f} s", flush=True)
    one.wait(within - (time.monotonic() - began), print)
    outcome = one.compare(run, time.monotonic() - began)
    told = ", ".join(f"{count} of {what}" for what, count in kills.items())
    print(
        f"{kills.total()} kills ({told}; {pairs} times two at once) in {run.round} rounds, "
        f"{outcome.seconds:.0f} s: model differs by {outcome.difference:g}, ledger "
        f"{'equal' if outcome.same_ledger else 'DIFFERENT'}"
    )
    return 0 if outcome.is_equal and kills.total() >= wanted else 1


def await_rounds(one: Rehearsal, hub: Party, more: int, within: float = 300.0) -> None:
    """Until the hub has made some rounds, or has ended."""
    log, until = one.of(hub) / "out" / "log.jsonl", time.monotonic() + within
    seen = rounds(log)
    while rounds(log) < seen + more and time.monotonic() < until:
        if one.processes[hub].poll() is not None:
            return
        time.sleep(0.05)


def rounds(log: Path) -> int:
    return log.read_text().count('"event": "round"') if log.exists() else 0


def kind(party: Party) -> str:
    return "clients" if isinstance(party, Client) else "hubs"


if __name__ == "__main__":
    sys.exit(main())
