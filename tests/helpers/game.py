"""The distinguishing game, for any algorithm that makes releases private.

Every client of a silo is a game of its own: its first record is one of two candidates. An attacker
knows everything else, sees everything that the client receives and sends, and tells the candidates
apart. It needs to know nothing of the algorithm: it runs the client's own program on either
candidate, with what the client received, and compares what that sends with what was sent:

- Of embeddings it knows the noise that either candidate would have had in them, and how likely that
  noise is.
- It gives the program this noise, so that all that follows from an embedding is as it would have
  been. What is sent besides embeddings then differs between the candidates by no more than the
  noise of the local steps, or gives the candidate away.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from scipy.stats import beta

from fedloom import Task
from fedloom.core import tree
from fedloom.core.placed import Noise
from fedloom.core.topology import Client
from fedloom.data.placement import Placement, Shard
from fedloom.engines.party.engine import PartyEngine
from fedloom.engines.party.values import HostedValues
from fedloom.fabric.noise import among_padding
from fedloom.fabric.schedule import Everyone
from fedloom.models.library import linear
from fedloom.runs.loop import play
from fedloom.transports.memory import MemoryTransport

SILO, MASTER = "games", "master"
FEATURES, WIDTH, CLASSES = 3, 2, 2
SURE = 1e6  # the log ratio of what cannot be otherwise
SAME = 1e-9  # numbers that differ by less are equal


def measured_mu(ratios, truth, confidence=0.95):
    """A lower bound of mu, from the errors of guessing by the ratio's sign."""
    tail = (1 - confidence) / 2
    wrong = [((ratios > 0) != truth)[truth == side] for side in (False, True)]
    upper = [beta.ppf(1 - tail, int(w.sum()) + 1, len(w) - int(w.sum())) for w in wrong]
    if sum(upper) >= 1:
        return 0.0
    return NormalDist().inv_cdf(1 - upper[0]) - NormalDist().inv_cdf(upper[1])


def candidates(games, seed, far):
    """For each game two records, far from each other: clipped, they are opposites."""
    draw = torch.Generator().manual_seed(seed)
    away = torch.randn(games, FEATURES, generator=draw, dtype=torch.float64)
    return -far * away, far * away


@dataclass
class Table:
    """The records of all games; `records` of each client, of which the first is in question."""

    truth: Any
    pair: tuple[torch.Tensor, torch.Tensor]
    records: int = 4

    def placement(self, world):
        """Everybody's rows where the first records are those of `world`: 0, 1 or the truth."""
        draw, games = torch.Generator().manual_seed(99), len(self.truth)
        x = torch.randn(games, self.records, FEATURES, generator=draw, dtype=torch.float64)
        second = torch.from_numpy(self.truth) if world is None else torch.full((games,), world == 1)
        x[:, 0] = torch.where(second[:, None], self.pair[1], self.pair[0])
        y = torch.randint(CLASSES, (games, self.records), generator=draw)
        ids = np.arange(games * self.records).reshape(games, self.records)
        other = torch.randn(games * self.records, 2, generator=draw, dtype=torch.float64)
        silo = {str(k): Shard(ids[k], x[k], y[k]) for k in range(games)}
        master = {"0": Shard(ids.ravel(), other, y.ravel())}
        return Placement.of({SILO: silo, MASTER: master})

    def task(self, head):
        width = WIDTH if head else CLASSES
        blocks = {SILO: linear(FEATURES, width), MASTER: linear(2, width)}
        return Task(blocks, "cross-entropy", head=linear(width, CLASSES) if head else None)


@dataclass
class Seen:
    """What passed between the games' clients and their hub, in the order of sending."""

    real: Seen | None = None  # what everyone is given in place of what it was sent
    passed: dict = field(default_factory=dict)

    def through(self, send):
        def sending(message):
            name = (message.key, message.kind, message.source, message.to)
            self.passed[name] = tree.copy(message.payload)
            if self.real is not None and name in self.real.passed:
                message = message._replace(payload=self.real.passed[name])
            send(message)

        return sending

    def sent(self):
        """{client: [(kind, payload)]}"""
        messages = defaultdict(list)
        for (_, kind, source, _), payload in self.passed.items():
            if isinstance(source, Client) and source.silo == SILO:
                messages[source].append((kind, payload))
        return messages


class World(PartyEngine):
    """The reference engine with a noise that the attacker chooses. `chosen`: for each release of a
    client its noise; none: no noise at all."""

    real = False
    chosen: dict | None = None
    asked: dict | None = (
        None  # for each release of a client its rows, and whether they are noisy once
    )

    def row_noise(self, where, ids, sizes, once=False):
        noise_k = super().row_noise(where, ids, sizes, once)
        if self.real:
            return noise_k
        replaced = {}
        for client in self._clients():
            rows = ids.flatten()[where.real(client)]
            number = len(self.asked[client])
            self.asked[client].append((rows.tolist(), once is not None))
            noise = torch.zeros(len(rows), sizes[client.silo][0], dtype=self.dtype)
            if self.chosen is not None and client in self.chosen:
                noise = self.chosen[client][number]
            own_noise = Noise(noise, torch.zeros(len(rows), 0, dtype=self.dtype))
            replaced[client] = among_padding(own_noise, where.slots[client] >= 0)
        return HostedValues(replaced)

    def noise(self, ids, steps, sizes):
        noise_k = super().noise(ids, steps, sizes)
        if self.real:
            return noise_k
        return HostedValues(
            {c: torch.zeros_like(noise_k.get(c, "noise")) for c in noise_k.clients()}
        )


def run_world(algorithm, table, head, rounds, seed, world=None, real=None, chosen=None):
    """Train in one world. Returns the engine and what was seen."""
    placement = table.placement(world)
    task = algorithm.trains(table.task(head))
    algorithm.check(task, placement)
    shapes = task.shapes(placement, torch.float64)
    parties = placement.topology.parties
    transport = MemoryTransport(parties)
    fed = World(
        task,
        shapes,
        placement.view(parties),
        hosted=parties,
        transport=transport,
        seed=seed,
        schedule=Everyone(),
    )
    fed.real, fed.chosen, fed.asked = real is None, chosen, defaultdict(list)
    seen = Seen(real)
    transport.send = seen.through(transport.send)
    for _ in play(fed, algorithm, rounds):
        pass
    return fed, seen


def log_ratio(value, means, deviation):
    """log p(value | second) - log p(value | first)."""
    first, second = (float((value - mean).square().sum()) for mean in means)
    return (first - second) / (2 * deviation**2)


def flat(payload):
    parts = [a.double().flatten() for a in tree.tensors(payload)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def play_games(algorithm, table, head, rounds, seed):
    """The log ratio of every game, and the engine of the real world."""
    fed, real = run_world(algorithm, table, head, rounds, seed)
    given, noise = {"real": real}, algorithm.scales.noise
    clean = [run_world(algorithm, table, head, rounds, seed, w, **given) for w in (0, 1)]
    sent, ratios = real.sent(), dict.fromkeys(map(str, range(len(table.truth))), 0.0)
    chosen = []
    for engine, seen in clean:
        released = {}
        for client, messages in seen.sent().items():
            pairs = zip(_embeddings(sent[client]), _embeddings(messages), strict=True)
            released[client] = [(was - mean) / noise for was, mean in pairs]
            assert len(released[client]) == len(engine.asked[client])
        chosen.append(released)
    for client, releases in clean[0][0].asked.items():
        if client.silo == SILO:
            ratios[client.name] += _of_releases(releases, chosen[0][client], chosen[1][client])
    follow = [
        run_world(algorithm, table, head, rounds, seed, w, chosen=chosen[w], **given)[1].sent()
        for w in (0, 1)
    ]
    others = {client: _others(messages) for client, messages in sent.items()}
    theirs = [{client: _others(messages) for client, messages in one.items()} for one in follow]
    for number in range(len(next(iter(others.values())))):
        each = {
            client.name: (messages[number], theirs[0][client][number], theirs[1][client][number])
            for client, messages in others.items()
        }
        for name, ratio in _of_others(each, table.truth).items():
            ratios[name] += ratio
    return np.array(list(ratios.values())), fed


def _embeddings(messages):
    return [payload for kind, payload in messages if kind == "embedding"]


def _others(messages):
    return [flat(payload) for kind, payload in messages if kind != "embedding"]


def _of_releases(releases, first, second):
    """By the noise that the releases of a client would have had. A row whose noise is the same
    each time says nothing new when it is sent again."""
    seen, total = {}, 0.0
    for (rows, once), one, two in zip(releases, first, second, strict=True):
        for row, a, b in zip(rows, one, two, strict=True):
            if once and row in seen:
                assert torch.allclose(seen[row], a, atol=SAME)
                continue
            seen[row] = a
            total += (float(a.square().sum()) - float(b.square().sum())) / 2
    return total


def _of_others(each, truth):
    """By one message of every client: its noise is what is left of it in the true world."""
    left = [value - (two if truth[int(name)] else one) for name, (value, one, two) in each.items()]
    deviation = float(torch.cat(left).std()) if sum(map(len, left)) > 1 else 0.0
    differences = {}
    for name, (value, one, two) in each.items():
        if not len(value) or float((one - two).abs().max()) < SAME:
            continue
        if deviation < SAME:
            near = float((value - one).norm() - (value - two).norm())
            differences[name] = math.copysign(SURE, near)
        else:
            differences[name] = log_ratio(value, (one, two), deviation)
    return differences
