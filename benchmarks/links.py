"""The pattern of grpc_baseline.py through FedLoom's links, without local work: it shows the cost of
frames, checks and exactly-once delivery. Same arguments, same output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedloom.core.topology import Client, Party, Topology
from fedloom.deployment.connect import Connections
from fedloom.deployment.keys.certificates import party_of
from fedloom.deployment.party_file import PartyFile
from fedloom.fabric.kinds import Key, Message
from fedloom.fabric.permits import Permits, form, route_of


def permits(topology: Topology, payloads: Mapping[str, torch.Tensor]) -> Permits:
    """Permits for all messages between all parties; they are checked for every message, as in a
    run."""
    parties = topology.parties
    return Permits(
        {
            route_of(kind, source, to): frozenset([form([("", "float32", tuple(a.shape))], False)])
            for kind, a in payloads.items()
            for source in parties
            for to in parties
        }
    )


def main() -> None:
    name, plan = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    me, sizes = party_of(name), plan["sizes"]
    topology = Topology({silo: tuple(names) for silo, names in plan["clients"].items()})
    path = Path(plan["folder"]) / "parties" / name.replace("/", "-") / "party.toml"
    links = Connections(PartyFile.read(path), topology)
    payloads = {kind: torch.zeros(size // 4) for kind, size in sizes.items()}
    transport = links.transport("f" * 64, permits(topology, payloads), lambda *_, **__: None)
    transport.open()
    transport.await_peers(transport.links, 120)
    box, key = transport.mailbox(me), [0, 0]

    def each(parties: list[Any], verb: str, kind: str, move: int) -> None:
        for other in parties:
            if verb == "send":
                message = Message(Key(key[0], move), kind, me, other, payloads[kind])
                transport.send(message)
            else:
                assert box.take(other, Key(key[0], move), kind, 60) is not None

    own: list[Party] = list(topology.of(me)) if isinstance(me, str) else []
    others = [silo for silo in topology.silos if silo != me]
    seconds = []
    for key[0] in range(plan["rounds"]):
        began = time.perf_counter()
        if isinstance(me, Client):
            each([me.silo], "take", "model", 1)
            each([me.silo], "send", "embedding", 2)
            each([me.silo], "take", "rest", 4)
            each([me.silo], "send", "update", 5)
            continue
        each(own, "send", "model", 1)
        each(own, "take", "embedding", 2)
        each(others, "send", "hub-embedding", 3)
        each(others, "take", "hub-embedding", 3)
        each(own, "send", "rest", 4)
        each(own, "take", "update", 5)
        seconds.append(time.perf_counter() - began)
    transport.close()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
