"""Two organisations, three CSV files: match by id, train, save, predict for new people.

    python examples/own_tables.py

Nothing is fetched: the tables are made up here, in a temporary folder.
"""

import random
import tempfile
from pathlib import Path

from fedloom import Run, Task, TDCDPrivateLabels, load_model, read_tables


def write_tables(folder: Path) -> None:
    """A bank with two branches knows income, job and who defaulted; an insurer knows claims."""
    draw = random.Random(2)
    branches = {"north": ["id,income,job,default"], "south": ["id,income,job,default"]}
    insurer = ["id,claims"]
    for person in range(400):
        income, claims = draw.randint(15, 60), draw.randint(0, 4)
        job = draw.choice(["baker", "clerk"])
        default = "yes" if claims + (job == "baker") > income / 12 else "no"
        branch = "north" if person < 250 else "south"
        branches[branch].append(f"{person},{income},{job},{default}")
        insurer.append(f"{person},{claims}")
    for name, lines in {**branches, "insurer": insurer}.items():
        (folder / f"{name}.csv").write_text("\n".join(lines))
    (folder / "new-bank.csv").write_text("id,income,job\n900,20,baker\n901,55,clerk\n")
    (folder / "new-insurer.csv").write_text("id,claims\n901,0\n900,4\n")


def main(folder: Path) -> None:
    write_tables(folder)
    data = read_tables(
        {
            "bank": {"north": folder / "north.csv", "south": folder / "south.csv"},
            "insurer": folder / "insurer.csv",
        },
        id="id",
        label="default",
    )
    print(data.train.size, "training rows,", data.test.size, "test rows")

    # only the bank has labels, so the algorithm is the one with private labels
    algorithm = TDCDPrivateLabels(labels_at="bank", local_steps=5, lr=0.2, batch=100)
    run = Run(algorithm, Task.of(data, "mlp", hidden=[8]), data, seed=1)
    run.fit(20)
    print(f"AUROC {run.evaluate()['auroc']:.2f}, {run.ledger.total()} bytes sent")

    run.save(folder / "model")
    model = load_model(folder / "model")
    new = {"bank": folder / "new-bank.csv", "insurer": folder / "new-insurer.csv"}
    ids, scores = model.predict_tables(new, id="id")
    for person, risk in zip(ids.tolist(), model.probabilities(scores).flatten(), strict=True):
        print(f"person {person}: risk {risk:.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
