"""The accountant's own test: the distinguishing game (tests/helpers/game.py), for every algorithm,
mode and number of local steps. The mu it measures must not exceed the claimed one in modes that
promise something; in mode noise-only it does, even for a master that sees embeddings only.
"""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch.func import grad

from fedloom import Run, Task
from fedloom.algorithms.vafl.vafl import VAFL
from fedloom.core.errors import ModelError
from fedloom.core.registry import algorithms
from fedloom.core.topology import Client
from fedloom.data.placement import Placement, Shard
from fedloom.models.library import linear
from fedloom.privacy.settings import Privacy
from tests.helpers.game import (
    FEATURES,
    MASTER,
    WIDTH,
    Table,
    candidates,
    log_ratio,
    measured_mu,
    play_games,
)

CLIP = 1.0
STEPS = (1, 2, 10)
MU = 0.7  # small enough for a few games to show that it does not hold

FORMS = {  # what of their options changes what leaves a client; all others are played as they are
    "tdcd": [{}, {"minibatch": "fresh"}],
    "fedbcd": [
        {"order": order, "updates": updates, "labels_at": at}
        for order in ("parallel", "sequential")
        for updates, at in (("fresh-own", None), ("frozen-gradient", MASTER))
    ],
    "vafl": [{"group": 2, "labels_at": MASTER}],
    "splitnn-async": [{"labels_at": MASTER}],
}


def private(name):
    return any(field.name == "privacy" for field in fields(algorithms[name]))


def privacy_of(mode, mu, releases):
    if mode == "frozen":
        return Privacy("frozen", clip=CLIP, mu=mu)
    return Privacy("trained", clip=CLIP, gradient_clip=1.0, mu=mu, releases=releases)


CASES = [
    pytest.param(name, form, mode, steps, head, id="-".join(map(str, words)))
    for name in algorithms
    if private(name)
    for form in FORMS.get(name, [{}])
    for mode in ("frozen", "trained")
    for steps in STEPS
    for head in (True, False)
    for words in [(name, *filter(None, form.values()), mode, steps, "head" if head else "sum")]
]


def game_of(name, form, mode, steps, rounds):
    kind, releases = algorithms[name], 1
    if kind.asynchronous:  # two visits a round, and one before
        releases = 3
    if "fresh" in form.values():
        releases = steps
    if "sequential" in form.values():
        releases = 2
    privacy = privacy_of(mode, MU, releases * rounds)
    return kind(local_steps=steps, lr=0.5, batch=None, privacy=privacy, **form)


def is_refused(form, mode, head):
    """What the product has no form of."""
    return (mode, head) == ("frozen", False) or (head and "frozen-gradient" in form.values())


@pytest.mark.parametrize(("name", "form", "mode", "steps", "head"), CASES)
def test_a_guarantee_holds(name, form, mode, steps, head):
    """By all that leaves a client, whatever the algorithm makes of it."""
    games, rounds = (64, 2) if mode == "frozen" or steps < 10 else (48, 1)
    truth = np.arange(games) % 2 == 1
    table = Table(truth, candidates(games, 1, far=40))
    algorithm = game_of(name, form, mode, steps, rounds)
    if is_refused(form, mode, head):
        with pytest.raises(ModelError):
            algorithm.check(table.task(head), table.placement(None))
        return
    ratios, fed = play_games(algorithm, table, head, rounds, seed=5)
    spent = algorithm.spending(fed)
    assert spent["guarantee"]
    assert measured_mu(ratios, truth, confidence=0.999) <= spent["mu"] <= MU * (1 + 1e-9)
    # has the attacker eyes? Embeddings alone tell so much of candidates so far apart
    released = float(fed.releases.of("games")[0].max() * algorithm.scales.release)
    assert ratios[truth].mean() - ratios[~truth].mean() > 0.1 * released


def test_every_private_algorithm_is_played():
    played = {case.values[0] for case in CASES}
    assert played == {name for name in algorithms if private(name)}
    assert {"tdcd", "fedbcd", "vafl", "splitnn-async"} <= played


@pytest.mark.parametrize("mode", ["frozen", "trained"])
def test_the_attack_is_as_strong_as_can_be(mode):
    """One local step, where the ratio is exact: of Gaussian mechanisms it is N(-+mu^2/2, mu^2)."""
    truth = np.arange(240) % 2 == 1
    table = Table(truth, candidates(len(truth), 1, far=40))
    given = {"group": 2, "labels_at": MASTER, "prime": False}
    algorithm = VAFL(lr=0.5, batch=None, privacy=privacy_of(mode, 1.4, 3), **given)
    ratios, fed = play_games(algorithm, table, True, 3, seed=5)
    claimed = algorithm.spending(fed)["mu"]
    apart = math.sqrt(ratios[truth].mean() - ratios[~truth].mean())
    assert 0.8 * claimed < apart < 1.2 * claimed
    assert 0.4 * claimed < measured_mu(ratios, truth) <= claimed


def play(privacy, truth, pair, seed, rounds, records=4, lr=0.5):
    """VAFL where each client of the silo is one game: its first record is one of two. Returns the
    run, and what each client was sent and sent in each round."""
    draw, games = torch.Generator().manual_seed(99), len(truth)
    x = torch.randn(games, records, FEATURES, generator=draw, dtype=torch.float64)
    x[:, 0] = torch.where(torch.from_numpy(truth)[:, None], pair[1], pair[0])
    y = torch.randint(2, (games, records), generator=draw)
    ids = np.arange(games * records).reshape(games, records)
    other = torch.randn(games * records, 2, generator=draw, dtype=torch.float64)
    silo = {str(k): Shard(ids[k], x[k], y[k]) for k in range(games)}
    rows = Placement.of({"games": silo, "master": {"0": Shard(ids.ravel(), other, y.ravel())}})
    head = linear(WIDTH, 2) if privacy.mode == "frozen" else None
    task = Task(
        {"games": linear(FEATURES, WIDTH), "master": linear(2, WIDTH)}, "cross-entropy", head=head
    )
    vafl = VAFL(lr=lr, batch=None, group=2, labels_at="master", prime=False, privacy=privacy)
    run = Run(vafl, task, rows, seed=seed, engine="reference", precision="float64")
    seen, send = {}, run.fed._transport.send

    def listening(message):
        for end in (message.source, message.to):
            if isinstance(end, Client) and end.silo == "games":
                seen[end.name, message.key.round, message.kind] = message.payload
        send(message)

    run.fed._transport.send = listening
    run.fit(rounds)
    return run, seen, x


def order_of(run, client, round):
    """Which of its records a client's rows of a minibatch are, in their order."""
    ids = run.fed.streams.common("minibatch", round, 0).sample(run.fed.size, run.fed.size)
    owner, names = run.placement.owner["games"], run.placement.topology.clients["games"]
    own = [row for row in ids.tolist() if owner[row] == names.index(client)]
    return [int(run.placement.ids[row]) % len(own) for row in own]


def embedded(theta, x):
    """A linear block, clipped; of one record or of several."""
    z = x @ theta["body.0.weight"].T + theta["body.0.bias"]
    return z * torch.clamp(CLIP / z.norm(dim=-1, keepdim=True), max=1)


def pulled(theta, x, gradient):
    return (embedded(theta, x) * gradient).sum()


def follow(theta, world, gradients, lr):
    """The block after a step on these records."""
    by_theta = grad(pulled)(theta, world, gradients)
    return {part: theta[part] - lr * by_theta[part] / len(world) for part in theta}


def test_noise_alone_guarantees_nothing():
    """A master that sees embeddings only follows the block under either candidate: the record is
    in the embeddings of all other rows."""
    rounds, games, lr = 24, 24, 50.0
    privacy = Privacy("noise-only", clip=CLIP, noise=10.0)
    truth, ratios = np.arange(games) % 2 == 1, []
    pair = candidates(games, 2, far=2)
    for game in range(games):
        own = [value[game : game + 1] for value in pair]
        given = {"seed": game, "rounds": rounds, "records": 200, "lr": lr}
        run, seen, x = play(privacy, truth[game : game + 1], own, **given)
        total, paths = 0.0, [seen["0", 0, "model"].block] * 2
        for round in range(rounds):
            order = order_of(run, "0", round)
            worlds = [torch.cat([value, x[0, 1:]])[order] for value in own]
            sent, gradients = seen["0", round, "embedding"], seen["0", round, "own-slope"].value
            means = [embedded(theta, world) for theta, world in zip(paths, worlds, strict=True)]
            total += log_ratio(sent, means, privacy.noise)
            both = zip(paths, worlds, strict=True)
            paths = [follow(theta, world, gradients, lr) for theta, world in both]
        ratios.append(total)
    spent = run.add_record().privacy
    assert spent["mu"] == pytest.approx(2 * CLIP / 10.0 * math.sqrt(rounds))
    assert measured_mu(np.array(ratios), truth) > spent["mu"]
    assert not spent["guarantee"]
