"""`python -m benchmarks.federation`: what real parties cost, on loopback with mutual TLS.

A round of TDCD beside a bare exchange of the same bytes (bare.py), large models, many clients.
Both sides are processes of their own on the same machine, one after the other, in turn.
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
WARM = 10  # rounds that do not count


def rehearsed(folder: Path, **given: Any) -> tuple[list[float], dict[str, int], Run, Rehearsal]:
    """Seconds of each round at the first hub, bytes of one message of each kind."""
    one = Rehearsal(RunFile.parse(RUN.format(**given)), folder, WAITS)
    run = one.prepare()
    parties = run.placement.topology.parties
    try:
        for party in parties:
            one.start(party)
        one.wait(600)
    finally:
        one.stop()
    if not one.compare(run, 0.0).is_equal:
        raise SystemExit("the parties' model is not the reference's: nothing to measure")
    sizes = {}
    for line, (messages, size) in run.ledger.of_round(0).items():
        sizes[line.kind] = size // messages
    hub = parties[0] if isinstance(parties[0], str) else run.placement.topology.silos[0]
    return seconds_of(one, hub), sizes, run, one


def seconds_of(one: Rehearsal, hub: Party) -> list[float]:
    lines = (one.of(hub) / "out" / "log.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    ends = [datetime.fromisoformat(t["time"]).timestamp() for t in told if t["event"] == "round"]
    return [after - before for before, after in pairwise(ends)]


def exchanged(
    how: str, one: Rehearsal, run: Run, sizes: Mapping[str, int], rounds: int
) -> list[float]:
    """The same bytes in the same pattern, `bare` or through our `links`; seconds of each round at
    the first hub."""
    silos = run.placement.topology.silos
    plan = {
        "rounds": rounds,
        "hubs": dict(zip(silos, free_ports(len(silos)), strict=True)),
        "how": how,
        "clients": {silo: list(run.placement.topology.clients[silo]) for silo in silos},
        "folder": str(one.folder),
        "sizes": dict(sizes),
    }
    path = one.folder / "plan.json"
    path.write_text(json.dumps(plan))
    started = [
        subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{how}", str(party), str(path)],
            stdout=subprocess.PIPE,
        )
        for party in run.placement.topology.parties
    ]
    try:
        told = {str(process.args[3]): process.communicate(timeout=600)[0] for process in started}
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
    return json.loads(told[silos[0]])


def small(rounds: int) -> list[str]:
    """TDCD itself; and, with the sizes of deployment between organisations, the exchange alone."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        given = {"clients": 2, "hidden": [16], "steps": 5, "batch": 100, "rounds": rounds}
        ours, sizes, run, one = rehearsed(Path(folder) / "r", **given)
        whole = statistics.mean(ours[WARM:])
        lines.append(
            f"| TDCD, small MLP, Q 5, 2 silos x 2 clients, local steps and checkpoints included | "
            f"{1e3 * whole:.1f} ms a round | < 80 ms |"
        )
        usual = {"model": 1 << 20, "update": 1 << 20}
        usual |= dict.fromkeys(("embedding", "hub-embedding", "rest"), 100_000)
        for what, these in (("its messages", sizes), ("1 MB models, 100 kB embeddings", usual)):
            lines.append(compared(f"{what}, exchanged only", one, run, these, rounds, "<= 1.5"))
    return lines


def compared(
    what: str, one: Rehearsal, run: Run, sizes: Mapping[str, int], rounds: int, wanted: str
) -> str:
    """Our links beside the bare exchange, in turn; the better of two each."""
    found: dict[str, list[float]] = {"links": [], "bare": []}
    for _ in range(2):
        for how, times in found.items():
            warm = min(WARM, rounds // 4)
            times.append(statistics.mean(exchanged(how, one, run, sizes, rounds)[warm:]))
    mine, plain = min(found["links"]), min(found["bare"])
    clients = len(run.placement.topology.of(run.placement.topology.silos[0]))
    moved = clients * (sizes["model"] + sizes["update"]) / 1e6
    rate = f" ({moved / mine:.0f} and {moved / plain:.0f} MB/s a hub)" if moved > 1 else ""
    told = f"{1e3 * mine:.1f} ms a round, bare {1e3 * plain:.1f} ms{rate}"
    return f"| {what} | {told}: **{mine / plain:.2f}** | {wanted} |"


def large(rounds: int) -> list[str]:
    """Models of 45 MB; a round sends each client one and takes one back."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"clients": 2, "hidden": [16], "steps": 1, "batch": 20, "rounds": 2}
        _, sizes, run, one = rehearsed(Path(folder) / "r", **given)
        sizes = {**sizes, "model": 45_000_000, "update": 45_000_000}
        return [compared("45 MB models, exchanged only", one, run, sizes, rounds, "<= 1.43")]


def many(clients: int) -> list[str]:
    """As many processes as clients."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"clients": clients // 2, "hidden": [16], "steps": 2, "batch": 200, "rounds": 12}
        one = Rehearsal(RunFile.parse(RUN.format(**given)), Path(folder) / "r", WAITS)
        run = one.prepare()
        parties = run.placement.topology.parties
        try:
            for party in parties:
                one.start(party)
            memory = memory_of(one, [party for party in parties if isinstance(party, Client)])
            one.wait(900)
        finally:
            one.stop()
        equal = one.compare(run, 0.0).is_equal
        took = statistics.mean(seconds_of(one, run.placement.topology.silos[0])[2:])
    state = "equal to the reference" if equal else "DIFFERENT from the reference"
    return [
        f"| {clients} clients, {len(parties)} processes | {1e3 * took:.0f} ms a round, {state} | "
        "completes |",
        f"| memory of a client process | {memory} | - |",
    ]


def memory_of(one: Rehearsal, clients: list[Party], within: float = 600.0) -> str:
    """Resident, and its own share of what is shared, in the middle of a run."""
    until, log = time.monotonic() + within, one.of(clients[0]) / "log"
    while not log.exists() or "round 2 of" not in log.read_text():
        if time.monotonic() > until or one.processes[clients[0]].poll() is not None:
            return "not measured"
        time.sleep(0.1)
    found = {}
    text = Path(f"/proc/{one.processes[clients[0]].pid}/smaps_rollup").read_text()
    for line in text.splitlines():
        name, *rest = line.split()
        if name in ("Rss:", "Pss:"):
            found[name] = int(rest[0]) / 1024
    return f"{found['Rss:']:.0f} MiB resident, {found['Pss:']:.0f} MiB with shared pages divided"


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
