"""What `explain` and the threat model say can be computed from what is sent: it can."""

import pytest
import torch

from fedloom import TDCD, Run, Task
from fedloom.core.rng import Secrets
from fedloom.core.topology import Client
from fedloom.data.partition.arrays import partition
from fedloom.explain import explain
from fedloom.models.library import linear, mlp

WIDTH = 6
SECRETS = Secrets("a run", {"a": bytes(range(32)), "b": bytes(range(1, 33))})


def run_of(blocks, clients, *, batch=None, secrets=None):
    """Two silos with as many columns as their embeddings have numbers; silo a is looked into."""
    draw = torch.Generator().manual_seed(0)
    x = {silo: torch.randn(60, WIDTH, generator=draw, dtype=torch.float64) for silo in "ab"}
    y = torch.randint(WIDTH, (60,), generator=draw)
    rows = partition(x, y, dict.fromkeys(x, clients), seed=3)
    task = Task(blocks, "cross-entropy")
    algorithm = TDCD(local_steps=1, lr=0.1, batch=batch)
    options = {"engine": "reference", "precision": "float64", "secrets": secrets}
    return Run(algorithm, task, rows, **options)


def watched(run, kinds):
    """One round; {(kind, source): payload}."""
    seen, send = {}, run.fed._transport.send

    def sending(message):
        if message.kind in kinds:
            seen[message.kind, message.source, message.to] = message.payload
        send(message)

    run.fed._transport.send = sending
    run.fit(1)
    return seen


def r2(guessed, rows):
    return float(1 - (guessed - rows).square().sum() / (rows - rows.mean(0)).square().sum())


def inverted(block, sent):
    """Rows of a linear block from their embeddings."""
    name = next(name for name in block if name.endswith("weight"))
    return (sent - block[name.replace("weight", "bias")]) @ torch.linalg.inv(block[name]).T


@pytest.mark.parametrize("secrets", [None, SECRETS], ids=["public", "secret"])
def test_embeddings_are_rows_for_who_has_the_block(secrets):
    """A silo's own hub has it; other hubs have the initial one unless it comes from a secret."""
    blocks = dict.fromkeys("ab", linear(WIDTH, WIDTH))
    run = run_of(blocks, 2, secrets=secrets)
    part, streams = run.fed.parts.value["a"], run.fed.streams
    own, public = part.initial(streams).block, part.initial_for_all(streams).block
    sent = watched(run, {"hub-embedding"})["hub-embedding", "a", "b"].value
    rows = run.placement.x["a"][run.algorithm.ids(run.fed, 0)[0]]
    assert r2(inverted(own, sent), rows) > 1 - 1e-9
    by_others = r2(inverted(public, sent), rows)
    assert by_others > 1 - 1e-9 if secrets is None else by_others < 0.5
    text = explain(run).text()
    assert "In silos a, b an embedding has as many numbers as a row, or more" in text
    assert "drawn from the seed of the run file, so all parties know them" in " ".join(text.split())


def test_the_update_of_one_row_is_the_row():
    """A first layer's gradient is the row times that of its bias."""
    blocks = dict.fromkeys("ab", mlp(WIDTH, [5], WIDTH))
    run = run_of(blocks, 30, batch=20)
    owner, ids = run.placement.owner["a"], run.algorithm.ids(run.fed, 0)[0]
    names = run.placement.topology.of("a")
    start = run.fed.parts.value["a"].initial(run.fed.streams).block
    seen, exact = watched(run, {"update"}), 0
    for place, client in enumerate(names):
        rows = [row for row in ids.tolist() if owner[row] == place]
        if len(rows) != 1:
            continue
        assert isinstance(client, Client)
        moved = {name: a - start[name] for name, a in seen["update", client, "a"].block.items()}
        weight = next(name for name in moved if name.endswith("weight"))
        bias = moved[weight.replace("weight", "bias")]
        most = int(bias.abs().argmax())
        inverted = moved[weight][most] / bias[most]
        assert torch.allclose(inverted, run.placement.x["a"][rows[0]], atol=1e-6)
        exact += 1
    assert exact >= 5
    assert "a single row in the minibatch" in explain(run).text()


def test_every_message_says_what_it_gives_away():
    """Of all kinds but those that carry no more than a model that all may know."""
    from fedloom.core.registry import algorithms
    from fedloom.explain import explain_algorithm

    harmless = {"model", "head", "top", "own-model", "recall"}
    for name in algorithms:
        explanation = explain_algorithm(name)
        for kind, reveals in explanation.reveals().items():
            assert reveals or kind in harmless, f"{name}: {kind}"
