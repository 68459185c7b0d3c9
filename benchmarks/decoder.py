"""`python -m benchmarks.decoder`: how well another silo reconstructs features from embeddings.

Digits in three silos, TDCD, no noise. An attacker who knows 100 rows of silo a fits a ridge
regression from what it has received of these rows to their features, and predicts those of all
other rows. Prints R2 over five draws of the known rows.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from torch import Tensor

from fedloom import TDCD, Partition, Run, Task, load_dataset

KNOWN, DRAWS, ROUNDS = 100, 5, 200


def reconstruction(inputs: Tensor, features: Tensor) -> str:
    scores = []
    for seed in range(DRAWS):
        order = np.random.default_rng(seed).permutation(len(inputs))
        known_rows, others = order[:KNOWN], order[KNOWN:]
        decoder = RidgeCV(np.logspace(-4, 4, 17)).fit(
            inputs[known_rows].numpy(), features[known_rows].numpy()
        )
        rows = features[others].numpy()
        missed = ((decoder.predict(inputs[others].numpy()) - rows) ** 2).sum()
        scores.append(1 - missed / ((rows - rows.mean(0)) ** 2).sum())
    return f"{np.mean(scores):.2f} ({np.std(scores):.2f})"


def main() -> None:
    torch.set_num_threads(1)
    data = Partition(silos=["a", "b", "c"], clients=2).place(load_dataset("digits"))
    rows = data.train
    x = {silo: rows.x[silo].double().flatten(1) for silo in "abc"}
    labels = rows.y["a"]
    assert labels is not None
    own = torch.cat([x["c"], torch.nn.functional.one_hot(labels.long(), 10).double()], 1)
    print(f"silo c's own {x['c'].shape[1]} features and the label: {reconstruction(own, x['a'])}")
    for width in (10, 32):
        task = Task.of(data, "mlp", hidden=[32], embedding=width, head="linear")
        run = Run(TDCD(local_steps=5, lr=0.1, batch=100), task, data).fit(ROUNDS)
        theta = run.algorithm.blocks(run.fed, run.state)["a"]
        with torch.no_grad():
            sent = run.fed.parts.value["a"].embed(theta, rows.x["a"]).double()
        print(
            f"embeddings of {width} numbers for {x['a'].shape[1]}: {reconstruction(sent, x['a'])}"
        )


if __name__ == "__main__":
    main()
