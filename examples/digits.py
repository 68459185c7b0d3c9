"""Four organisations, each with a strip of every handwritten digit, and branches that hold them.

TDCD trains one model over all of it; the figure sets it beside the pooled model, the silos on their
own, and the silos on their own with their scores added up. Run it with `make demo`.
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

from fedloom import TDCD, Alone, Central, Run, Task, mlp, partition
from fedloom.data.partition import contiguous

SILOS = {"north": 6, "east": 3, "south": 4, "west": 2}  # numbers of clients
ROUNDS, EVERY = 100, 5
STYLES = [("#0072B2", "-"), ("#E69F00", "--"), ("#009E73", "-."), ("#555555", ":")]


def data():
    """1,797 images of 8 x 8 pixels; each silo gets two of the eight columns of pixels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    train, test = order[:1400], order[1400:]
    strips = {s: list(cut) for s, cut in zip(SILOS, contiguous(8, len(SILOS)), strict=True)}
    placed = []
    for rows in (train, test):
        x = {silo: images[rows][:, :, strip].flatten(1) for silo, strip in strips.items()}
        placed.append(partition(x, labels[rows], SILOS, seed=1))
    return placed


def accuracy(run, rows):
    """Of the joint prediction; of silos on their own, the best one's."""
    hubs = [None] if run.algorithm.joint or run.algorithm.combined else list(SILOS)
    found = [(run.predict(rows, at=hub).argmax(1) == rows.labels()).float().mean() for hub in hubs]
    return 100 * max(float(a) for a in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    train, test = data()
    task = Task(dict.fromkeys(SILOS, mlp(16, [32], 10)), "cross-entropy")
    settings = {"local_steps": 10, "lr": 0.1, "batch": 400}
    algorithms = {
        "TDCD": TDCD(**settings),
        "pooled (central)": Central(**settings),
        "silos alone, scores added": Alone(**settings, combined=True),
        "best silo alone": Alone(**settings),
    }
    print(f"{train.size} training rows, {test.size} test rows, silos and clients: {SILOS}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    bills = {}
    for (name, algorithm), (colour, style) in zip(algorithms.items(), STYLES, strict=True):
        run, begun, curve = Run(algorithm, task, train, seed=0), time.perf_counter(), []

        def note(run, name=name, curve=curve):
            if run.round % EVERY == 0:
                curve.append((run.round, accuracy(run, test)))
                print(f"\r  {name:26} round {run.round:3} of {ROUNDS}", end="", flush=True)

        run.fit(ROUNDS, on_round=note)
        rounds, percent = zip(*curve, strict=True)
        seconds, bills[name] = time.perf_counter() - begun, run.ledger
        print(
            f"\r  {name:26} {percent[-1]:5.1f} % after {ROUNDS} rounds, "
            f"{run.ledger.total() / 1e6:5.1f} MB sent, {seconds:.1f} s"
        )
        left.plot(rounds, percent, style, color=colour, label=name, linewidth=2)
    left.set(xlabel="communication rounds", ylabel="test accuracy, %", ylim=(50, 100))
    left.legend(loc="lower right")
    draw_bill(right, bills["TDCD"])
    figure.suptitle("Handwritten digits cut both ways: 4 silos, 6 + 3 + 4 + 2 clients")
    figure.savefig(out / "digits.png", dpi=120)
    print(f"figure: {out / 'digits.png'}")


def draw_bill(axes, ledger):
    """What TDCD sent, by kind: inside the silos, and between the hubs."""
    sizes = {}
    for entry in ledger:
        line = (entry.tier, f"{entry.kind} ({entry.direction})")
        sizes[line] = sizes.get(line, 0) + entry.bytes / 1e6
    for (tier, name), size in reversed(sizes.items()):
        between = tier == "top"
        bar = axes.barh(name, size, color=STYLES[0 if between else 1][0])
        bar.set_label("between hubs" if between else "inside silos")
        axes.bar_label(bar, [f"{size:.1f}"], padding=3)
    labelled = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(labelled.values(), labelled, loc="upper right")
    axes.set(xlabel="megabytes sent by TDCD", xlim=(0, 1.12 * max(sizes.values())))


if __name__ == "__main__":
    main()
