"""What a report says and draws of predictions: from made-up folders, with known answers."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedloom.core.errors import DamagedError
from fedloom.records.metrics import metrics
from fedloom.records.predictions import NAME, Predictions
from fedloom.report import judgement, quality, silos
from fedloom.report.compare import compare_table
from fedloom.report.folder import read_run
from fedloom.report.judged import Judged, bins, precision_recall, roc, wilson
from fedloom.report.page import write_report
from fedloom.report.verdict import against, verdict
from tests.report.test_report import Outline, assert_legible, make, put, record

GOALS = {"binary": "auroc", "classes": "accuracy", "number": "r2"}


def rows(goal, n=300, noise=1.0, seed=0, outputs=4):
    """Labels that are always the same, and scores with so much noise."""
    fixed, rng = np.random.default_rng(7), np.random.default_rng(seed)
    if goal == "number":
        y = fixed.normal(size=n)
        return torch.tensor((y + noise * rng.normal(size=n))[:, None]), torch.tensor(y)
    if goal == "binary":
        y = fixed.random(n) < 0.3
        z = 2 * y - 1 + noise * rng.normal(size=n)
        return torch.tensor(z[:, None]), torch.tensor(y.astype(float))
    y = fixed.integers(0, outputs, n)
    z = 2 * np.eye(outputs)[y] + noise * rng.normal(size=(n, outputs))
    return torch.tensor(z), torch.tensor(y)


def keep(folder, part, goal, by_hub, labels, without=None, rows="rows"):
    """A part's record and predictions in a run's folder."""
    place = folder / "baselines" / part if part else folder
    found = Predictions(goal, labels, by_hub, rows, (), without or {})
    scored = {hub: metrics(goal, z, labels) for hub, z in by_hub.items()}
    means = {
        m: float(np.mean([s[m] for s in scored.values()])) for m in next(iter(scored.values()))
    }
    last = record(10, 0.5) | {"metrics": means, "intervals": found.intervals()}
    if len(by_hub) > 1:
        last["by_silo"] = scored
    if part in ("ridge", "logistic", "boosting", "best-pooled"):
        last |= {"round": 0, "bytes": {}, "time": None, "notes": {"pooled": part}}
        put(place, [last], with_ledger=False)
    else:
        put(place, [record(0, 0.1) | {"metrics": dict.fromkeys(means, 0.1)}, last])
    found.save(place)


def folder_of(goal, folder, linear="ridge", **scores):
    """A run with a main part, baselines and contributions. `scores`: noise by part."""
    z, y = rows(goal)
    parts = ["tdcd", "central", "alone", linear, "without-bank"]
    make(folder, parts={part: [] for part in parts}, goal=goal)
    lost = {silo: rows(goal, noise=noise)[0] for silo, noise in (("bank", 3.0), ("insurer", 1.0))}
    keep(folder, "", goal, {"bank": z}, y, lost)
    keep(folder, "central", goal, {"bank": z + 1e-3}, y)
    keep(folder, linear, goal, {"pooled": rows(goal, noise=0.5, seed=1)[0]}, y)
    alone = {"bank": rows(goal, noise=4.0, seed=2)[0], "insurer": rows(goal, noise=9.0, seed=3)[0]}
    keep(folder, "alone", goal, alone, y)
    keep(folder, "without-bank", goal, {"insurer": rows(goal, noise=2.5, seed=4)[0]}, y)
    told = json.loads((folder / "manifest.json").read_text())
    told["data"]["classes"] = {"binary": ["no", "yes"], "classes": list("abcd"), "number": []}[goal]
    (folder / "manifest.json").write_text(json.dumps(told))
    return folder


@pytest.mark.parametrize("goal", GOALS)
def test_the_verdict_tells_better_from_worse(tmp_path, goal):
    linear = "ridge" if goal == "number" else "logistic"
    run = read_run(folder_of(goal, tmp_path, linear))
    orders = {part: difference.order() for part, difference in against(run).items()}
    assert orders == {"central": "not told apart", "alone": "worse", linear: "better"}
    said = verdict(run)
    head, better = said.split(" Better than that on these test rows: ")
    assert "(95 % interval " in head
    better, apart = better.split(" Not told apart from it: ")
    assert f"{linear} regression on the pooled columns" in better
    assert "(by " in better
    apart, worse = apart.split(" Worse: ")
    assert "the pooled model on the same budget" in apart
    assert "the best silo alone" in worse


def test_other_rows_are_not_compared_row_by_row(tmp_path):
    z, y = rows("binary")
    folder_of("binary", tmp_path, "logistic")
    keep(tmp_path, "central", "binary", {"bank": z}, y, rows="others")
    assert set(against(read_run(tmp_path))) == {"alone", "logistic"}
    assert "; the pooled model on the same budget 0." in verdict(read_run(tmp_path))


def test_an_exchange_that_cannot_be_told_to_help(tmp_path):
    z, y = rows("number")
    make(tmp_path, parts={"tdcd": [], "no-exchange": []}, goal="number")
    for noise, said in ((0.02, "cannot be told"), (0.5, "The exchange between silos added 0.")):
        keep(tmp_path, "", "number", {"bank": z}, y)
        other = z + noise * torch.tensor(np.random.default_rng(5).normal(size=z.shape))
        keep(tmp_path, "no-exchange", "number", {"bank": other}, y)
        assert said in verdict(read_run(tmp_path))


@pytest.mark.parametrize("goal", GOALS)
def test_the_report_has_the_figures(tmp_path, goal):
    folder = folder_of(goal, tmp_path, "ridge" if goal == "number" else "logistic")
    text = write_report(folder).read_text(encoding="utf-8")
    assert Outline(text).images
    drawn = {path.stem for path in (folder / "figures").glob("*.png")}
    wanted = {"errors"} if goal == "number" else {"curves", "calibration", "confusion"}
    assert wanted | {"contributions", "metric"} <= drawn
    assert not ({"errors", "curves", "calibration", "confusion"} - wanted) & drawn
    for said in ("How good the predictions are", "What each silo adds", "95 % bootstrap interval"):
        assert said in text
    assert "Without bank, the test" in text
    assert "Trained without bank, the test" in text
    assert "It was not trained without insurer" in text
    assert "without-bank" not in text
    (folder / NAME).unlink()  # a folder that was sent on without them
    again = write_report(folder).read_text(encoding="utf-8")
    assert "How good the predictions are" not in again
    assert "95 % interval" in again  # it is in the records


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("narrow", [False, True])
def test_figures_are_legible(tmp_path, goal, narrow):
    from fedloom.report.judged import judged

    folder = folder_of(goal, tmp_path, "ridge" if goal == "number" else "logistic")
    run, parts = read_run(folder), judged(read_run(folder))
    main = parts["tdcd"]
    figures = [silos.bars(silos.additions(run), run.headline, narrow)]
    if goal == "number":
        figures.append(judgement.errors(main, narrow))
    else:
        figures += [judgement.curves(parts, narrow), judgement.calibration(main, narrow)]
        figures.append(judgement.confusion(main, narrow))
    for figure in figures:
        assert_legible(figure)


@pytest.mark.parametrize("narrow", [False, True])
def test_many_classes_with_long_names(narrow):
    z, y = rows("classes", outputs=20)
    of = Judged(
        "TDCD", Predictions("classes", y, {"a": z}, "").scored(z), ("a_long_name" * 3,) * 20
    )
    assert_legible(judgement.confusion(of, narrow))
    assert_legible(judgement.curves({"tdcd": of}, narrow))
    z, y = rows("classes", outputs=21)
    of = Judged("TDCD", Predictions("classes", y, {"a": z}, "").scored(z))
    assert judgement.confusion(of, narrow) is None
    assert len(quality.sentences(of)) >= 4


def of_binary(z, y):
    scores, labels = torch.tensor(z)[:, None], torch.tensor(y)
    return Judged(
        "TDCD", Predictions("binary", labels, {"a": scores}, "").scored(scores), ("no", "yes")
    )


def test_curves_are_scikit_learns():
    from sklearn.metrics import auc, roc_curve

    z, y = rows("binary", n=200)
    z = z.round(decimals=1)  # ties
    (positive, odds) = y.numpy().astype(int), z[:, 0].numpy()
    ours = roc(positive, odds)
    false, true, _ = roc_curve(positive, odds, drop_intermediate=False)
    np.testing.assert_allclose(ours.x, false)
    np.testing.assert_allclose(ours.y, true)
    recall, precision = precision_recall(positive, odds)
    assert (np.diff(recall) >= 0).all()
    assert precision[-1] == pytest.approx(positive.mean())
    assert auc(*ours) == pytest.approx(metrics("binary", z, y)["auroc"])


def test_calibration_counts():
    """1,000 rows of which as many come true as is said, and as many more that are all said .3."""
    said = np.repeat([0.1, 0.5, 0.9], 200)
    true = np.concatenate([np.arange(200) < 20, np.arange(200) < 100, np.arange(200) < 180])
    of = of_binary(np.log(said / (1 - said)), true.astype(float))
    groups = bins(of)
    assert [(g.rows, round(g.said, 9), g.true) for g in groups] == [
        (200, 0.1, 0.1),
        (200, 0.5, 0.5),
        (200, 0.9, 0.9),
    ]
    for g in groups:
        assert (g.low, g.high) == wilson(g.true, 200)
        assert g.low < g.true < g.high
    assert wilson(0.0, 10)[0] == 0.0
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    many = bins(
        of_binary(rows("binary", n=5000)[0][:, 0].numpy(), rows("binary", n=5000)[1].numpy())
    )
    assert sum(g.rows for g in many) == 5000
    assert all(a.said < b.said for a, b in pairwise(many))


def test_sentences_of_a_classifier():
    said = np.repeat([0.05, 0.3, 0.9], [500, 100, 400])
    true = np.concatenate([np.arange(500) < 25, np.arange(100) < 34, np.arange(400) < 300])
    found = " ".join(quality.sentences(of_binary(np.log(said / (1 - said)), true.astype(float))))
    assert "Base rate: 36 of 100 test rows are yes. Who always says no is right in 64 of" in found
    assert (
        "Of 100 rows to which the model gives about 30 %, 34 are yes (counted in 100 rows" in found
    )
    assert "It says yes of 400 of 1,000 rows; 75 of 100 of these are." in found
    assert "Of 100 rows that are yes, it finds 84." in found
    assert "off by 6.4 percentage points, mostly too high" in found
    none = " ".join(quality.sentences(of_binary(np.full(50, -2.0), np.zeros(50))))
    assert "It says yes of no row." in none
    assert "AUROC" not in none
    broken = quality.sentences(of_binary(np.full(50, np.nan), np.zeros(50)))
    assert broken == ["Its scores are not finite: there is nothing to show."]


def test_sentences_of_classes():
    y = np.repeat([0, 1, 2], [50, 30, 20])
    z = np.eye(3)[y] * 3
    z[50:62] = [3, 0, 0]  # 12 of 30 that are b are said to be a
    scores = torch.tensor(z)
    scored = Predictions("classes", torch.tensor(y), {"x": scores}, "").scored(scores)
    found = " ".join(quality.sentences(Judged("TDCD", scored, ("a", "b", "c"))))
    assert "The most frequent class, a, has 50 of 100 test rows" in found
    assert "The model is right in 88 of 100." in found
    assert "Hardest is b: 60 of 100 are found." in found
    assert "of 100 rows that are b, 40 are said to be a." in found


def test_sentences_of_numbers():
    y = np.linspace(0, 100, 101)
    z = 50 + 0.5 * (y - 50) + 1
    scores = torch.tensor(z)[:, None]
    scored = Predictions("number", torch.tensor(y), {"x": scores}, "").scored(scores)
    found = " ".join(quality.sentences(Judged("TDCD", scored)))
    assert "Half of the test rows are off by less than 12.5" in found
    assert "on average what is said is 1 too high" in found
    assert "In the third of the rows with the lowest labels it says 18" in found
    assert "too little" in found


def test_what_a_silo_adds(tmp_path):
    run = read_run(folder_of("number", tmp_path))
    found = {(a.silo, a.how): a for a in silos.additions(run)}
    assert set(found) == {("bank", "replaced"), ("insurer", "replaced"), ("bank", "retrained")}
    z, y = rows("number")
    whole, without = (metrics("number", s, y)["r2"] for s in (z, rows("number", noise=3.0)[0]))
    assert found["bank", "replaced"].loss.value == pytest.approx(whole - without)
    assert found["insurer", "replaced"].loss.value == 0  # the same scores
    said = silos.sentences(run, silos.additions(run))
    assert said[0].startswith("Without bank, the test R² is worse by ")
    assert said[1].startswith("Trained without bank, the test R² is worse by ")
    assert "Without insurer" in said[2]
    assert "not told apart from the model with it" in said[2]


def test_a_damaged_file_is_refused(tmp_path):
    folder_of("number", tmp_path)
    content = bytearray((tmp_path / NAME).read_bytes())
    content[-1] ^= 1
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DamagedError, match="delete the file"):
        write_report(tmp_path)


def test_only_its_owner_can_read_predictions(tmp_path):
    folder_of("number", tmp_path)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_comparisons_have_intervals_and_pooled_baselines(tmp_path):
    a, b = (folder_of("number", tmp_path / name) for name in "ab")
    keep(b, "", "number", {"bank": rows("number", noise=2.0)[0]}, rows("number")[1])
    first, second, ridge = compare_table([a, b])
    assert first["against_first"] is None
    assert second["against_first"] == "worse"
    assert (ridge["label"], ridge["baseline"]) == ("ridge regression", "ridge")
    assert ridge["against_first"] == "better"  # the same beside both runs: there once
    assert first["interval"][0] < first["final"] < first["interval"][1]
