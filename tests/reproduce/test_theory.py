"""Theorem 1 of TDCD on ridge regression: its constants, and both sides of Eqn. 15, worked out in
other ways."""

import json

import numpy as np
import pytest
import torch

from fedloom.reproduce import theory
from fedloom.reproduce.experiment import Experiment

Q, L2, ROUNDS, EVERY = 3, 0.1, 20, 2
TOLD = {
    "run": {
        "data": {"name": "synthetic", "rows": 80, "features": 4, "goal": "number"},
        "partition": {"silos": 2, "clients": 2},
        "model": {"name": "linear", "bias": False, "zero": True},
        "engine": {"precision": "float64"},
        "algorithm": {
            "name": "tdcd",
            "batch": 30,
            "lr": 0.8,
            "l2": L2,
            "local_steps": Q,
            "rounds": ROUNDS,
        },
        "evaluation": {"every": EVERY},
    },
    "vary": {"Q": {"key": "algorithm.local_steps", "values": [Q]}},
}


@pytest.fixture
def file():
    experiment = Experiment("made", False, TOLD)
    return experiment.file(experiment.settings[-1], 0, None)


@pytest.fixture
def run(file):
    return theory.build_run(file, theory.build_data(file))


@pytest.fixture
def ridge(run):
    return theory.Ridge(run)


def test_smoothness_and_gradient(ridge):
    """By numpy, and by differences of the loss."""
    hessian = ridge.x.T @ ridge.x / len(ridge.y) + L2 * np.eye(ridge.x.shape[1])
    assert ridge.smoothness == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-12)
    theta = np.ones(ridge.x.shape[1])
    step = 1e-6 * np.eye(len(theta))
    differences = [(ridge.loss(theta + d) - ridge.loss(theta - d)) / 2e-6 for d in step]
    assert ridge.gradient(theta) == pytest.approx(differences, abs=1e-6)


def test_the_steepest_partial_derivative(run, ridge):
    """L_max (Eqn. 7, 10): of every client's partial derivative by its own block, how much it
    changes with the whole model, all silos' blocks. By autograd, for the rounds' minibatches."""
    placement, x, y = run.placement, torch.from_numpy(ridge.x), torch.from_numpy(ridge.y)
    widths = [placement.x[silo].shape[1] for silo in ridge.silos]
    worst, alone = [], []

    def partial(theta, rows, block):
        def loss(own):
            whole = torch.cat([theta[: block.start], own, theta[block.stop :]])
            return (x[rows] @ whole - y[rows]).square().mean() / 2 + L2 / 2 * own @ own

        return torch.func.grad(loss)(theta[block])

    for round in range(4):
        ids = run.fed.streams.common("minibatch", round, 0).sample(placement.size, 30)
        for place, silo in enumerate(ridge.silos):
            block = slice(sum(widths[:place]), sum(widths[: place + 1]))
            for own in placement.held(silo).values():
                rows = torch.tensor([row for row in ids.tolist() if row in own.tolist()])
                if len(rows):
                    theta = torch.zeros(sum(widths), dtype=torch.float64)
                    by_all = torch.func.jacrev(partial)(theta, rows, block)
                    worst.append(float(torch.linalg.matrix_norm(by_all, 2)))
                    alone.append(float(torch.linalg.matrix_norm(by_all[:, block], 2)))
    assert ridge.largest_gradient(4) == pytest.approx(max(worst), rel=1e-10)
    assert max(worst) > 1.01 * max(alone)  # the other blocks' columns count here


def test_the_spread_of_partial_derivatives(ridge):
    """sigma_j^2, by drawing minibatches; a client without a row in one takes no step."""
    m, theta = len(ridge.y), np.ones(ridge.x.shape[1])
    draw, silo = np.random.default_rng(0), ridge.silos[0]
    rows = ridge.parts[silo] * (ridge.x @ theta - ridge.y)[:, None]
    for batch, owned in ((30, ridge.owned[silo]), (4, [np.arange(3), np.arange(3, m)])):
        ridge.batch, ridge.owned[silo] = batch, owned
        worst = []
        for own in owned:
            far = []
            for _ in range(4000):
                sampled = np.intersect1d(draw.choice(m, batch, replace=False), own)
                step = rows[sampled].mean(0) if len(sampled) else np.zeros(rows.shape[1])
                far.append(((step - rows.mean(0)) ** 2).sum())
            worst.append(np.mean(far))
        assert ridge.variances(theta)[0] == pytest.approx(max(worst), rel=0.1)


def test_both_sides_of_the_bound(file, tmp_path):
    """Eqn. 15 from its constants and from a run of the same file, and the left below the right."""
    theory.measure(file, tmp_path, lambda done, rounds: None)
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, *range(EVERY, ROUNDS + 1, EVERY)]
    data = theory.build_data(file)
    again = theory.build_run(file, data)
    ridge = theory.Ridge(again)
    eta = 0.8 / (8 * Q * max(ridge.smoothness, ridge.largest_gradient(ROUNDS)))
    slower = theory.replace(again.algorithm, lr=eta)
    ridge.run = again = theory.build_run(file, data, algorithm=slower)
    squares, spread, first = [], np.zeros(len(ridge.silos)), ridge.loss(ridge.theta())
    for line in lines:
        for done in range(again.round + 1, line["round"] + 1):
            theta = ridge.theta()
            squares.append((ridge.gradient(theta) ** 2).sum())
            again.fit(done)
        spread = np.maximum(spread, ridge.variances(theta))  # of the rounds that are looked at
        metrics, smooth, steep = line["metrics"], ridge.smoothness, ridge.largest_gradient(ROUNDS)
        assert metrics["eta"] == pytest.approx(eta)
        assert (metrics["L"], metrics["L_max"]) == pytest.approx((smooth, steep))
        assert metrics["mean_grad2"] == pytest.approx(np.mean(squares))
        assert metrics["sigma2"] == pytest.approx(spread.sum())
        rate = 4 * (first - ridge.loss(ridge.theta())) / (eta * Q * line["round"])
        noise = 4 * eta * smooth * Q + 16 * eta**2 * Q**2 * steep**2
        noise += 32 * eta**3 * Q**3 * smooth * steep**2
        assert metrics["rate_term"] == pytest.approx(rate)
        assert metrics["noise_term"] == pytest.approx(noise * spread.sum())
        assert metrics["bound"] == pytest.approx(rate + noise * spread.sum())
        assert metrics["mean_grad2"] < metrics["bound"]
