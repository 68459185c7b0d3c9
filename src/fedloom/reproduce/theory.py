"""Theorem 1 of TDCD's journal form on ridge regression, where everything in it can be computed.

For (1/2M) |X theta - y|^2 + l2 |theta|^2 / 2, with X_j the columns of silo j:

    L         largest eigenvalue of X^T X / M + l2
    L_max     largest norm of X_kj^T X / n + l2 E_j over the minibatches that are drawn: n rows of
              client k of silo j, E_j the identity at block j
    sigma_j^2 largest mean squared distance of a client's stochastic partial derivative from the
              true one, over clients and the models after each round. For n of a client's m rows,
              drawn without replacement, it is |bias|^2 + S^2 (1/n - 1/m), and n is hypergeometric

`lr` of the run file counts in the largest step size that the theorem allows, 1 / (8 Q max(L,
L_max)). A record's `mean_grad2` is the left side of the theorem after so many rounds, `bound` its
right side; `rate_term` and `noise_term` are the two parts of the latter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..algorithms import TDCD
from ..config.runfile import RunFile
from ..records.manifest import Manifest
from ..records.record import Record, write_records
from ..runs.build import build_data, build_run
from ..runs.run import Run

Floats = npt.NDArray[np.float64]


class Ridge:
    """The problem of a run with linear blocks without bias: all rows, and who holds them."""

    def __init__(self, run: Run):
        placement, algorithm = run.placement, run.algorithm
        assert isinstance(algorithm, TDCD)
        self.run, self.l2 = run, algorithm.l2
        self.silos = placement.topology.silos
        self.parts = {j: placement.x[j].double().numpy() for j in self.silos}
        self.x: Floats = np.concatenate(list(self.parts.values()), axis=1)
        self.y: Floats = placement.labels().double().numpy()
        self.owned = {j: [rows.numpy() for rows in placement.held(j).values()] for j in self.silos}
        self.batch = algorithm.batch or len(self.y)
        self.smoothness = float(np.linalg.eigvalsh(self.x.T @ self.x / len(self.y))[-1]) + self.l2

    def theta(self) -> Floats:
        """The current model, all blocks in a row."""
        run = self.run
        state = run.state if run.state is not None else run.algorithm.start(run.fed)
        blocks = run.algorithm.blocks(run.fed, state)
        return np.concatenate(
            [next(iter(blocks[j].block.values())).double().numpy().ravel() for j in self.silos]
        )

    def loss(self, theta: Floats) -> float:
        rest = self.x @ theta - self.y
        return float(rest @ rest / (2 * len(rest)) + self.l2 * theta @ theta / 2)

    def gradient(self, theta: Floats) -> Floats:
        return self.x.T @ (self.x @ theta - self.y) / len(self.y) + self.l2 * theta

    def largest_gradient(self, rounds: int) -> float:
        """L_max over the minibatches of so many rounds."""
        algorithm, largest = self.run.algorithm, 0.0
        assert isinstance(algorithm, TDCD)
        places = np.cumsum([0, *(part.shape[1] for part in self.parts.values())])
        owner = {j: self.run.placement.owner[j].numpy() for j in self.silos}
        for round in range(rounds):
            for ids in algorithm.ids(self.run.fed, round).numpy():
                for j, begin, end in zip(self.silos, places, places[1:], strict=False):
                    for k in range(len(self.owned[j])):
                        own = self.x[ids[owner[j][ids] == k]]
                        if len(own):
                            a = own[:, begin:end].T @ own / len(own)
                            a[:, begin:end] += self.l2 * np.eye(end - begin)
                            largest = max(largest, float(np.linalg.eigvalsh(a @ a.T)[-1]))
        return float(np.sqrt(largest))

    def variances(self, theta: Floats) -> list[float]:
        """sigma_j^2 at one model, silo by silo."""
        from scipy.stats import hypergeom

        rest, worsts = self.x @ theta - self.y, []
        for j in self.silos:
            rows = self.parts[j] * rest[:, None]
            mean, worst = rows.mean(0), 0.0
            for own in self.owned[j]:
                chosen, m = rows[own], len(own)
                n = np.arange(0, min(m, self.batch) + 1)
                chance = hypergeom(len(rest), m, self.batch).pmf(n)
                spread = chosen.var(0, ddof=1).sum()
                apart = ((chosen.mean(0) - mean) ** 2).sum()
                some = apart + spread * (1 / np.maximum(n, 1) - 1 / m)
                some[0] = (mean**2).sum()  # no row, no step
                worst = max(worst, float(chance @ some))
            worsts.append(worst)
        return worsts


def measure(file: RunFile, folder: Path, tell: Callable[[int, int], None]) -> None:
    """Run the file and write its records, with both sides of the theorem among the metrics."""
    data = build_data(file)
    run = build_run(file, data)
    problem, rounds = Ridge(run), file.rounds
    algorithm = run.algorithm
    assert isinstance(algorithm, TDCD)
    steps, share = algorithm.local_steps, float(algorithm.lr)  # type: ignore[arg-type]
    smooth, steepest = problem.smoothness, problem.largest_gradient(rounds)
    most = 1 / (8 * steps * max(smooth, steepest))
    eta = share * most
    problem.run = run = build_run(file, data, algorithm=replace(algorithm, lr=eta))
    folder.mkdir(parents=True, exist_ok=True)
    epochs = file.epochs_of(data.train.size)
    manifest = Manifest.begun(file, data, ["tdcd"], folder, epochs, run.task.loss)
    first, total, sigma2 = problem.loss(problem.theta()), 0.0, np.zeros(len(problem.silos))
    noise = 4 * (
        eta * smooth * steps
        + 4 * (eta * steps * steepest) ** 2
        + 8 * (eta * steps) ** 3 * smooth * steepest**2
    )
    records: list[Record] = []
    for done in range(1, rounds + 1):
        theta = problem.theta()
        total += float((problem.gradient(theta) ** 2).sum())
        due = done % file.every == 0 or done in (1, rounds)
        if due:
            sigma2 = np.maximum(sigma2, problem.variances(theta))
        run.fit(done)
        if due:
            loss = problem.loss(problem.theta())
            rate, spread = 4 * (first - loss) / (eta * steps * done), noise * float(sigma2.sum())
            metrics: dict[str, Any] = {
                "mean_grad2": total / done,
                "bound": rate + spread,
                "rate_term": rate,
                "noise_term": spread,
                "step_share": eta / most,
                "L": smooth,
                "L_max": steepest,
                "sigma2": float(sigma2.sum()),
                "eta": eta,
            }
            sent = {tier: run.ledger.total(tier) for tier in ("bottom", "top")}
            records.append(Record(done, done * steps, run.time, run.wall, sent, loss, metrics))
        tell(done, rounds)
    write_records(folder / "records.jsonl", records)
    manifest.finished(folder, {}, {})
