"""HyFEM's clients, each by its own model: its views, and its neurons of theta_0."""

from dataclasses import replace

import pytest
import torch

from fedloom import Run
from fedloom.algorithms import HyFEMAvg
from fedloom.core import tree
from fedloom.data.partition.views import class_view_cut
from tests.papers.test_hyfem import made_up, task

SHUFFLED = {"a": [4, 0, 2], "b": [1, 5, 3, 0], "c": [2, 1, 0, 5, 4, 3]}  # neurons of theta_0
HELD = {"a": [0, 1], "b": [1, 2], "c": [0, 2]}


@pytest.fixture
def shuffled():
    """A run after a round in which clients ended with different neurons of theta_0; no two hold
    the same views."""
    federated = class_view_cut(made_up(noise=2.5), {name: [0, 1, 2] for name in HELD}, HELD)
    widths = {name: [len(places)] for name, places in SHUFFLED.items()}
    algorithm = HyFEMAvg(local_steps=2, lr=0.1, batch=100, views=HELD, widths=widths)
    run = Run(algorithm, task((6,)), federated, precision="float64", seed=1).fit(1)
    maps = {name: (torch.tensor(places),) for name, places in SHUFFLED.items()}
    run.state = run.state._replace(maps=run.fed.place_hubs({"views": maps}))
    return run


def by_hand(run, name, x):
    """A client's own scores: its views' extractors, its inputs, its neurons."""
    block = run.algorithm.blocks(run.fed, run.state)["views"].block
    own, neurons = HELD[name], SHUFFLED[name]
    embedded = []
    for view in own:
        w, b = (block[f"extractors.{view}.{what}"] for what in ("weight", "bias"))
        embedded.append(x[:, view] @ w.T + b)
    at = [3 * view + k for view in own for k in range(3)]
    w, v = block["layers.0.weight"], block["layers.1.weight"]
    h = torch.relu(torch.cat(embedded, 1) @ w[neurons][:, at].T + block["layers.0.bias"][neurons])
    return h @ v[:, neurons].T + block["layers.1.bias"]


def test_every_client_is_judged_by_its_own_model(shuffled):
    """Its views, and its neurons: Pi_m theta_0, written out here."""
    x, y = shuffled.test.x["views"].double(), shuffled.test.labels()
    hits, scores = [], {name: by_hand(shuffled, name, x) for name in HELD}
    for name, wanted in scores.items():
        assert (shuffled.predict(shuffled.test, client=name) - wanted).abs().max() <= 1e-12
        hits.append(float((wanted.argmax(1) == y).float().mean()))
    assert len(set(hits)) == 3
    metrics = shuffled.evaluate()
    assert metrics["local_accuracy"] == pytest.approx(sum(hits) / 3)
    assert metrics["accuracy"] not in hits


def test_every_client_is_given_its_own_model(shuffled):
    """At the start of a round, with the step size 0: what comes back is what went down."""
    sent = {}
    run = Run(
        replace(shuffled.algorithm, lr=lambda step: 0.0, sweeps=0),
        shuffled.task,
        shuffled.placement,
        engine="reference",
        precision="float64",
    ).restore(shuffled.snapshot())
    send = run.fed._transport.send

    def listening(message):
        if message.kind in ("own-model", "own-update"):
            sent[message.kind, str(message.source), str(message.to)] = message.payload.block
        send(message)

    run.fed._transport.send = listening
    whole = run.algorithm.blocks(run.fed, run.state)["views"].block
    run.fit(run.round + 1)
    assert len(sent) == 6
    for name, neurons in SHUFFLED.items():
        down, up = (
            sent["own-model", "views", f"views/{name}"],
            sent["own-update", f"views/{name}", "views"],
        )
        at = [3 * view + k for view in HELD[name] for k in range(3)]
        assert torch.equal(down["layers.0.weight"], whole["layers.0.weight"][neurons][:, at])
        assert torch.equal(down["layers.1.weight"], whole["layers.1.weight"][:, neurons])
        extractors = {key for key in down if key.startswith("extractors")}
        assert extractors == {
            f"extractors.{view}.{what}" for view in HELD[name] for what in ("weight", "bias")
        }
        assert tree.largest_difference(down, up) == 0
