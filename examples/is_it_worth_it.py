"""Is the federation worth it? The same model federated, pooled, and by each silo alone.

    python examples/is_it_worth_it.py

Time is the virtual clock's: a message takes 10 units, a local step takes 1.
"""

from fedloom import TDCD, Alone, Central, Network, Partition, Run, Task, load_dataset

SETTINGS = {"local_steps": 5, "lr": 0.05, "batch": 100}
WAYS = {
    "federated (TDCD)": TDCD(**SETTINGS),
    "pooled": Central(**SETTINGS),
    "each silo alone": Alone(**SETTINGS),
    "alone, scores combined": Alone(**SETTINGS, combined=True),
}


def main() -> None:
    cut = Partition(silos=["clinic", "lab", "imaging"], clients=[2, 3, 4], seed=1)
    data = cut.place(load_dataset("breast-cancer"))
    task = Task.of(data, "mlp", hidden=[8])
    network = Network(t_comm=10, t_comp=1)
    print(f"{'':24}{'AUROC':>8}{'kB sent':>10}{'time':>8}")
    for name, algorithm in WAYS.items():
        run = Run(algorithm, task, data, seed=1, network=network).fit(20)
        auroc, sent = run.evaluate()["auroc"], run.ledger.total() / 1000
        print(f"{name:24}{auroc:8.3f}{sent:10.0f}{run.time:8.0f}")


if __name__ == "__main__":
    main()
