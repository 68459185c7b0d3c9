"""Bootstrap intervals: against simple loops, and against what they promise."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.core.registry import metrics as registered
from fedloom.records.bootstrap import (
    MOST,
    RESAMPLES,
    Difference,
    Interval,
    counts,
    intervals,
    mean,
    resampled,
)
from fedloom.records.metrics import NAMES, Scored, metric
from fedloom.records.weighted import WEIGHTED


def binary(n, seed=0, shift=1.0, ties=False):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.3).astype(int)
    z = rng.normal(size=n) + shift * (2 * y - 1)
    return Scored("binary", (np.round(z, 1) if ties else z)[:, None], y)


def classes(n, count=7, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, count, n)
    z = rng.normal(size=(n, count)) + 1.5 * np.eye(count)[y]
    return Scored("classes", z, y)


def numbers(n, seed=0, outputs=2):
    rng = np.random.default_rng(seed)
    y = 100 + rng.normal(size=(n, outputs))
    return Scored("number", y + 0.5 * rng.normal(size=(n, outputs)), y)


ROWS = {
    "binary": binary(150),
    "ties": binary(150, ties=True),
    "classes": classes(120),
    "number": numbers(90),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_every_metric_is_that_of_a_simple_loop(rows):
    """On the very resamples: rows repeated as often as they count."""
    (block,) = counts(len(rows.labels), seed=4, resamples=40)
    for name in NAMES[rows.goal]:
        fast = WEIGHTED[name].prepare(rows)(block)
        for value, count in zip(fast, block, strict=True):
            pick = np.repeat(np.arange(len(rows.labels)), count.astype(int))
            again = replace(rows, scores=rows.scores[pick], labels=rows.labels[pick])
            assert value == pytest.approx(registered[name](again), rel=1e-9), name


def test_the_interval_of_an_auroc_is_that_of_a_simple_loop():
    rows = binary(80, shift=0.5, ties=True)
    y, z = rows.labels, rows.scores[:, 0]
    loop = []
    for block in counts(80, seed=0):
        for count in block:
            pick = np.repeat(np.arange(80), count.astype(int))
            above = z[pick][y[pick] == 1][:, None] - z[pick][y[pick] == 0][None]
            loop.append((above > 0).mean() + (above == 0).mean() / 2)
    assert len(loop) == RESAMPLES
    found = resampled(rows, ["auroc"])["auroc"]
    np.testing.assert_allclose(found.draws, loop, rtol=1e-12)
    assert found.interval == pytest.approx(tuple(np.quantile(loop, [0.025, 0.975])))
    assert found.interval.low < found.value < found.interval.high


def test_counts_are_resamples():
    """As many rows as there are, each as likely as another, the same each time."""
    blocks = np.concatenate([*counts(3000, seed=1, resamples=400)])
    assert blocks.shape == (400, 3000)
    assert (blocks.sum(1) == 3000).all()
    assert abs((blocks == 0).mean() - np.exp(-1)) < 0.002
    assert (np.concatenate([*counts(3000, seed=1, resamples=400)]) == blocks).all()
    assert (np.concatenate([*counts(3000, seed=2, resamples=400)]) != blocks).any()


def test_an_interval_covers_the_truth_as_often_as_it_says():
    """300 test sets of 200 rows from a known distribution; 95 % up to chance (3.5 deviations)."""
    truth = {"accuracy": 0.8413447, "auroc": 0.9213504}  # Phi(1), Phi(2 / sqrt 2)
    covered = dict.fromkeys(truth, 0)
    for seed in range(300):
        found = intervals(resampled(binary(200, seed), truth, seed=seed))
        for name, true in truth.items():
            covered[name] += found[name].low <= true <= found[name].high
    for name, count in covered.items():
        assert 0.95 - 0.044 <= count / 300 <= 0.95 + 0.044, name


@pytest.mark.parametrize("name", ["auroc", "accuracy"])
def test_many_rows_are_capped_and_their_interval_is_scaled(name):
    few, many = binary(MOST, seed=2), binary(9 * MOST, seed=3)
    widths = []
    for rows in (few, many):
        found = resampled(rows, [name])[name]
        assert found.interval.low < found.value < found.interval.high
        widths.append(found.interval.high - found.interval.low)
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.15)


def test_pairs_tell_apart_what_intervals_alone_do_not():
    rng = np.random.default_rng(0)
    worse = binary(400, shift=0.8)
    better = replace(worse, scores=worse.scores + 0.15 * (2 * worse.labels[:, None] - 1))
    same = replace(worse, scores=worse.scores + 0.05 * rng.normal(size=worse.scores.shape))
    a, b, c = (resampled(rows, ["auroc"])["auroc"] for rows in (better, worse, same))
    assert a.interval.low < b.interval.high  # they overlap
    assert a.minus(b).order() == "better"
    assert b.minus(a).order() == "worse"
    assert b.minus(a).order(smaller_is_better=True) == "better"
    assert b.minus(c).order() == "not told apart"
    assert b.minus(b) == Difference(0.0, Interval(0.0, 0.0))


def test_what_is_undefined_has_no_interval():
    rows = binary(40)
    one_class = replace(rows, labels=np.zeros_like(rows.labels))
    assert "auroc" not in resampled(one_class, ["auroc", "accuracy"])
    lone = replace(rows, labels=(np.arange(40) == 3).astype(int))  # in a third of all resamples not
    found = resampled(lone, ["auroc"])["auroc"]
    assert np.isnan(found.draws).mean() == pytest.approx(np.exp(-1), abs=0.06)
    assert found.interval is None
    few = resampled(binary(9), ["accuracy"])["accuracy"]
    assert few.interval is None
    assert few.minus(few).order() == "not told apart"


def test_the_mean_of_silos_is_paired():
    silos = [binary(100, seed=0, shift=s) for s in (0.2, 1.0)]
    found = [resampled(rows, ["auroc"]) for rows in silos]
    both = mean(found)["auroc"]
    assert both.value == pytest.approx((found[0]["auroc"].value + found[1]["auroc"].value) / 2)
    np.testing.assert_allclose(
        both.draws, (found[0]["auroc"].draws + found[1]["auroc"].draws) / 2, rtol=1e-12
    )


def test_a_metric_of_ones_own():
    with registered.scratch():

        @metric("hits", "binary", "classes")
        def hits(rows):
            """The share that is right."""
            if len(set(rows.labels)) < 2:
                raise ValueError("one class only")
            return float((rows.predicted == rows.labels).mean())

        found = resampled(binary(60), ["hits", "accuracy"])
    assert len(found["hits"].draws) == 200
    np.testing.assert_allclose(found["hits"].draws, found["accuracy"].draws[:200])
