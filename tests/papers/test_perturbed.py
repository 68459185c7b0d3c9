"""Steps of clients whose embeddings left with noise, worked out from the messages alone.

VAFL's section 4 perturbs what is sent. A derivative that comes back was taken there, so it goes
back through the perturbed embedding; a step that takes the loss with the own embedding fresh takes
it clean. Here h = tanh(W x + b + noise), so that the two differ; the noise is read off what left.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import TDCD, Run, Task
from fedloom.algorithms import VAFL, FedBCD, SplitNNAsync
from fedloom.core.topology import Client
from fedloom.privacy.settings import Privacy
from fedloom.testing import placement

NOISY = Privacy("noise-only", clip=100.0, noise=0.5)  # so far out that no row is clipped
WIDTH, LR, Q, BATCH = 3, 0.3, 2, 12


def block(columns):
    return nn.Sequential(nn.Flatten(), nn.Linear(columns, WIDTH), nn.Tanh())


def listened(algorithm):
    """A round of one client a silo: {silo: {kind: payload}}, what its client was sent and sent last
    when its first update left it; and the minibatch's rows and labels."""
    rows = placement(3, 1)
    learn = Task({j: block(x[0].numel()) for j, x in rows.x.items()}, "cross-entropy")
    run = Run(algorithm, learn, rows, engine="reference", precision="float64", seed=3)
    last, seen, send = {silo: {} for silo in rows.x}, {}, run.fed._transport.send

    def listening(message):
        for end in (message.source, message.to):
            if isinstance(end, Client):
                last[end.silo][message.kind] = message.payload
                if message.kind == "update":
                    seen.setdefault(end.silo, dict(last[end.silo]))
        send(message)

    run.fed._transport.send = listening
    run.fit(1)
    ids = torch.from_numpy(run.fed.streams.common("minibatch", 0, 0).sample(rows.size, BATCH))
    return seen, {j: x[ids].flatten(1).double() for j, x in rows.x.items()}, rows.labels()[ids]


def noise_in(sent, theta, x):
    weight, bias = theta.values()
    return torch.atanh(sent) - x @ weight.T - bias


def stepped(theta, x, noise, objective):
    """Q plain steps."""
    theta = {name: value.clone().requires_grad_() for name, value in theta.items()}
    for _ in range(Q):
        weight, bias = theta.values()
        gradients = torch.autograd.grad(
            objective(torch.tanh(x @ weight.T + bias + noise)), list(theta.values())
        )
        with torch.no_grad():
            for value, gradient in zip(theta.values(), gradients, strict=True):
                value -= LR * gradient
    return {name: value.detach() for name, value in theta.items()}


def difference(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


SETTINGS = {"lr": LR, "batch": BATCH, "local_steps": Q, "privacy": NOISY}


@pytest.mark.parametrize(
    ("algorithm", "back_kind"),
    [
        (VAFL(**SETTINGS, group=3, prime=False), "own-slope"),
        (VAFL(**SETTINGS, group=3, prime=False, master="hub", labels_at="cedar"), "own-slope"),
        (SplitNNAsync(**SETTINGS, visits=9), "own-slope"),
        (FedBCD(**SETTINGS, updates="frozen-gradient"), "cut-gradient"),
        (FedBCD(**SETTINGS, updates="frozen-gradient", order="sequential"), "cut-gradient"),
    ],
    ids=["vafl", "vafl, elsewhere", "splitnn-async", "fedbcd", "fedbcd, in turn"],
)
def test_derivatives_that_come_back_go_through_the_perturbed_embedding(algorithm, back_kind):
    seen, x, _ = listened(algorithm)
    assert set(seen) == set(x)
    for silo, gradient_rows in seen.items():
        theta, sent, back = (gradient_rows[kind] for kind in ("model", "embedding", back_kind))
        noise, new = noise_in(sent, theta.block, x[silo]), gradient_rows["update"].block
        assert noise.std() > 0.3

        def pulled(phi, back=back):
            return (phi * back.value).sum() / BATCH

        assert difference(stepped(theta.block, x[silo], noise, pulled), new) < 1e-9
        assert difference(stepped(theta.block, x[silo], 0.0, pulled), new) > 1e-4


@pytest.mark.parametrize(
    "algorithm",
    [TDCD(**SETTINGS), FedBCD(**SETTINGS)],
    ids=["tdcd", "fedbcd"],
)
def test_steps_with_the_own_embedding_fresh_take_it_clean(algorithm):
    seen, x, y = listened(algorithm)
    assert set(seen) == set(x)
    for silo, gradient_rows in seen.items():
        theta, sent, rest = (gradient_rows[kind] for kind in ("model", "embedding", "rest"))
        noise, new = noise_in(sent, theta.block, x[silo]), gradient_rows["update"].block

        def loss(phi, rest=rest):
            return F.cross_entropy(phi + rest.value, y)

        assert difference(stepped(theta.block, x[silo], 0.0, loss), new) < 1e-9
        assert difference(stepped(theta.block, x[silo], noise, loss), new) > 1e-4
