"""`python -m benchmarks.federation`: the cost of real parties, on loopback with mutual TLS.

A round of TDCD beside an exchange of the same bytes over plain gRPC (grpc_baseline.py), large
models, many clients. In both cases parties are processes on one machine; the two take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedloom.config.runfile import RunFile
from fedloom.core.topology import Client, Party
from fedloom.deployment.rehearsal import Rehearsal, free_ports
from fedloom.runs.run import Run

from .timing import commit, machine

RUN = """\
[data]
name = "diabetes"

[partition]
silos = 2
clients = {clients}

[model]
name = "mlp"
hidden = {hidden}

[algorithm]
local_steps = {steps}
lr = 0.001
batch = {batch}
rounds = {rounds}
"""
WAITS = {"start": 600.0, "patience": 120.0, "beat": 1.0, "silence": 10.0, "linger": 20.0}
WARM = 10  # rounds that are not measured


def rehearsed(folder: Path, **given: Any) -> tuple[list[float], dict[str, int], Run, Rehearsal]:
    """Seconds of each round at the first hub, bytes of one message of each kind."""
    rehearsal = Rehearsal(RunFile.parse(RUN.format(**given)), folder, WAITS)
    run = rehearsal.prepare()
    parties = run.placement.topology.parties
    try:
        for party in parties:
            rehearsal.start(party)
        rehearsal.wait(600)
    finally:
        rehearsal.stop()
    if not rehearsal.compare(run, 0.0).is_equal:
        raise SystemExit("the parties' model is not the reference's: nothing to measure")
    sizes = {}
    for line, (messages, size) in run.ledger.of_round(0).items():
        sizes[line.kind] = size // messages
    hub = parties[0] if isinstance(parties[0], str) else run.placement.topology.silos[0]
    return seconds_of(rehearsal, hub), sizes, run, rehearsal


def seconds_of(rehearsal: Rehearsal, hub: Party) -> list[float]:
    lines = (rehearsal.of(hub) / "out" / "log.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    ends = [
        datetime.fromisoformat(event["time"]).timestamp()
        for event in events
        if event["event"] == "round"
    ]
    return [after - before for before, after in pairwise(ends)]


def exchanged(
    module: str, rehearsal: Rehearsal, run: Run, sizes: Mapping[str, int], rounds: int
) -> list[float]:
    """Exchange the same bytes in the same pattern by the module `grpc_baseline` or `links`;
    returns the seconds of each round at the first hub."""
    silos = run.placement.topology.silos
    plan = {
        "rounds": rounds,
        "hubs": dict(zip(silos, free_ports(len(silos)), strict=True)),
        "how": module,
        "clients": {silo: list(run.placement.topology.clients[silo]) for silo in silos},
        "folder": str(rehearsal.folder),
        "sizes": dict(sizes),
    }
    path = rehearsal.folder / "plan.json"
    path.write_text(json.dumps(plan))
    started = [
        subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", str(party), str(path)],
            stdout=subprocess.PIPE,
        )
        for party in run.placement.topology.parties
    ]
    try:
        outputs = {str(process.args[3]): process.communicate(timeout=600)[0] for process in started}
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
    return json.loads(outputs[silos[0]])


def small(rounds: int) -> list[str]:
    """TDCD itself; and, with the sizes of deployment between organisations, the exchange alone."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        given = {"clients": 2, "hidden": [16], "steps": 5, "batch": 100, "rounds": rounds}
        seconds, sizes, run, rehearsal = rehearsed(Path(folder) / "r", **given)
        mean = statistics.mean(seconds[WARM:])
        lines.append(
            f"| TDCD, small MLP, Q 5, 2 silos x 2 clients, local steps and checkpoints included | "
            f"{1e3 * mean:.1f} ms a round | < 80 ms |"
        )
        usual = {"model": 1 << 20, "update": 1 << 20}
        usual |= dict.fromkeys(("embedding", "hub-embedding", "rest"), 100_000)
        for what, sizes_of_messages in (
            ("its messages", sizes),
            ("1 MB models, 100 kB embeddings", usual),
        ):
            lines.append(
                compared(
                    f"{what}, exchanged only", rehearsal, run, sizes_of_messages, rounds, "<= 1.5"
                )
            )
    return lines


def compared(
    what: str, rehearsal: Rehearsal, run: Run, sizes: Mapping[str, int], rounds: int, wanted: str
) -> str:
    """Compare FedLoom's links with plain gRPC, in turn; the better of two measurements."""
    seconds: dict[str, list[float]] = {"links": [], "grpc_baseline": []}
    for _ in range(2):
        for module, times in seconds.items():
            warm = min(WARM, rounds // 4)
            times.append(statistics.mean(exchanged(module, rehearsal, run, sizes, rounds)[warm:]))
    links, baseline = min(seconds["links"]), min(seconds["grpc_baseline"])
    clients = len(run.placement.topology.of(run.placement.topology.silos[0]))
    moved = clients * (sizes["model"] + sizes["update"]) / 1e6
    rate = f" ({moved / links:.0f} and {moved / baseline:.0f} MB/s a hub)" if moved > 1 else ""
    cells = f"{1e3 * links:.1f} ms a round, plain gRPC {1e3 * baseline:.1f} ms{rate}"
    return f"| {what} | {cells}: **{links / baseline:.2f}** | {wanted} |"


def large(rounds: int) -> list[str]:
    """Models of 45 MB; a round sends each client one and takes one back."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"clients": 2, "hidden": [16], "steps": 1, "batch": 20, "rounds": 2}
        _, sizes, run, rehearsal = rehearsed(Path(folder) / "r", **given)
        sizes = {**sizes, "model": 45_000_000, "update": 45_000_000}
        return [compared("45 MB models, exchanged only", rehearsal, run, sizes, rounds, "<= 1.43")]


def many(clients: int) -> list[str]:
    """As many processes as clients."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"clients": clients // 2, "hidden": [16], "steps": 2, "batch": 200, "rounds": 12}
        rehearsal = Rehearsal(RunFile.parse(RUN.format(**given)), Path(folder) / "r", WAITS)
        run = rehearsal.prepare()
        parties = run.placement.topology.parties
        try:
            for party in parties:
                rehearsal.start(party)
            memory = memory_of(rehearsal, [party for party in parties if isinstance(party, Client)])
            rehearsal.wait(900)
        finally:
            rehearsal.stop()
        equal = rehearsal.compare(run, 0.0).is_equal
        took = statistics.mean(seconds_of(rehearsal, run.placement.topology.silos[0])[2:])
    state = "equal to the reference" if equal else "DIFFERENT from the reference"
    return [
        f"| {clients} clients, {len(parties)} processes | {1e3 * took:.0f} ms a round, {state} | "
        "completes |",
        f"| memory of a client process | {memory} | - |",
    ]


def memory_of(rehearsal: Rehearsal, clients: list[Party], within: float = 600.0) -> str:
    """The memory of a client in the middle of a run: resident, and with shared pages divided."""
    until, log = time.monotonic() + within, rehearsal.of(clients[0]) / "log"
    while not log.exists() or "round 2 of" not in log.read_text():
        if time.monotonic() > until or rehearsal.processes[clients[0]].poll() is not None:
            return "not measured"
        time.sleep(0.1)
    sizes = {}
    text = Path(f"/proc/{rehearsal.processes[clients[0]].pid}/smaps_rollup").read_text()
    for line in text.splitlines():
        name, *rest = line.split()
        if name in ("Rss:", "Pss:"):
            sizes[name] = int(rest[0]) / 1024
    return f"{sizes['Rss:']:.0f} MiB resident, {sizes['Pss:']:.0f} MiB with shared pages divided"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=("small", "large", "many"))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=40)
    given = parser.parse_args()
    parts = {
        "small": lambda: small(given.rounds),
        "large": lambda: large(8),
        "many": lambda: many(given.clients),
    }
    print(f"{machine()}; commit {commit()}")
    print("| what | measured | wanted |\n|---|---|---|")
    for name, part in parts.items():
        if given.only is None or name in given.only:
            print("\n".join(part()), flush=True)


if __name__ == "__main__":
    main()
