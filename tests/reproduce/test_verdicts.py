"""Verdicts: of curves that show what is claimed, and of curves that do not."""

import numpy as np
import pytest

from fedloom.core.errors import SettingError
from fedloom.reproduce.experiment import Setting
from fedloom.reproduce.lines import FigureLine, Measure, as_csv
from fedloom.reproduce.verdicts import judge, judge_all


def run(values, steps=1, loss=None):
    """Records of a run with these values of the accuracy, a round each."""
    return [
        {
            "round": r,
            "iteration": r * steps,
            "time": r * (30.0 + steps),
            "wall": 0.1 * r,
            "train_loss": 1 - value if loss is None else loss[r],
            "metrics": {"accuracy": value},
            "bytes": {},
        }
        for r, value in enumerate(values)
    ]


def line(q, curves, steps=None, diverged=(), **place):
    """The setting Q = q, and a run for each seed."""
    words = {"Q": f"Q = {q}", **{axis: f"{axis} = {value}" for axis, value in place.items()}}
    runs = {seed: run(curve, steps or q) for seed, curve in enumerate(curves)}
    return FigureLine(Setting({"Q": q, **place}, words, {}), runs, frozenset(diverged))


def rising(rate, seeds=3, noise=0.0, rounds=20):
    """Curves 1 - exp(-rate r), each seed a little off."""
    r = np.arange(rounds + 1)
    return [(1 - np.exp(-rate * r) + noise * (s - 1)).tolist() for s in range(seeds)]


ORDER = {"kind": "order", "claim": "more is better", "along": "Q", "trend": "up", "y": "accuracy"}


def test_an_order_holds_and_fails():
    good = [line(1, rising(0.02)), line(5, rising(0.1)), line(10, rising(0.3))]
    assert judge({**ORDER, "margin": 0.1, "stat": "mean"}, good).held
    assert not judge({**ORDER, "trend": "down", "margin": 0.1}, good).held
    assert not judge({**ORDER, "margin": 0.5}, good).held  # the steps are smaller than that
    swapped = [line(1, rising(0.1)), line(5, rising(0.3)), line(10, rising(0.2))]
    assert not judge({**ORDER, "stat": "mean"}, swapped).held
    assert judge({**ORDER, "pairs": "ends", "stat": "mean"}, swapped).held
    assert judge({**ORDER, "pairs": "first", "stat": "mean"}, swapped).held


def test_seeds_that_disagree_are_no_evidence():
    """A mean difference above the margin does not count where its error is as large."""
    before = line(1, [[0, 0.5]] * 3)
    clear = line(5, [[0, 0.60], [0, 0.61], [0, 0.59]])
    vague = line(5, [[0, 0.95], [0, 0.45], [0, 0.40]])
    assert judge(ORDER, [before, clear]).held
    assert not judge(ORDER, [before, vague]).held
    assert judge({**ORDER, "margin": -0.01}, [before, vague]).held  # "no worse" asks for less


def test_an_order_must_hold_at_every_place_of_the_other_axes():
    few = [line(1, rising(0.02), K="few"), line(5, rising(0.3), K="few")]
    many = [line(1, rising(0.3), K="many"), line(5, rising(0.02), K="many")]
    assert not judge(ORDER, few + many).held
    assert judge({**ORDER, "where": {"K": "few"}}, few + many).held


def test_alike():
    expect = {"kind": "alike", "claim": "no effect", "along": "Q", "y": "accuracy", "margin": 0.05}
    assert judge(expect, [line(1, rising(0.2)), line(5, rising(0.21))]).held
    assert not judge(expect, [line(1, rising(0.02)), line(5, rising(0.3))]).held
    same = [line(1, rising(0.2)), line(5, rising(0.2))]
    assert judge({**expect, "least": 0.0}, same).held
    assert not judge({**expect, "least": 0.99}, same).held, "alike because nothing was learned"


def test_a_run_that_diverged_is_never_evidence():
    expect = {"kind": "alike", "claim": "no effect", "along": "Q", "y": "accuracy", "margin": 9.0}
    lost = line(5, rising(0.2), diverged=[1])
    assert not judge(expect, [line(1, rising(0.2)), lost]).held
    assert not judge({**ORDER, "margin": -9}, [line(1, rising(0.1)), lost]).held
    diverges = {"kind": "diverges", "claim": "too large", "where": {"Q": 5}}
    assert not judge(diverges, [lost]).held  # one of three
    assert judge(diverges, [line(5, rising(0.2), diverged=[0, 1])]).held
    assert judge(diverges, [line(5, [[0.5, 0.4], [0.5, 0.1]])]).held  # the loss grew


def test_bounds_and_slopes():
    bound = {"kind": "bound", "claim": "about a half", "y": "accuracy", "at_least": 0.4}
    assert judge({**bound, "at_most": 0.6}, [line(1, [[0, 0.5, 0.5]])]).held
    assert not judge({**bound, "at_most": 0.45}, [line(1, [[0, 0.5, 0.5]])]).held
    falls = [line(r, [[0, r**-0.5, r**-0.5]], steps=1) for r in (1, 4, 16)]
    slope = {"kind": "slope", "claim": "1 / sqrt", "along": "Q", "y": "accuracy", "stat": "best"}
    assert judge({**slope, "at_least": -0.51, "at_most": -0.49}, falls).held
    assert not judge({**slope, "at_most": -0.6}, falls).held


def test_below():
    expect = {"kind": "below", "claim": "bound", "y": "accuracy", "other": "train_loss"}
    assert judge(expect, [line(1, [[0.1, 0.2, 0.3]])]).held  # the loss is 1 - accuracy
    assert not judge(expect, [line(1, [[0.1, 0.2, 0.6]])]).held


def test_time_units_are_the_papers():
    """31 / 4 units an iteration for Q = 1 / 10 at t_comm 10, 301 / 31 at 100."""
    for t_comm, q, cost in ((10, 1, 31), (10, 10, 4), (100, 1, 301), (100, 10, 31)):
        (last,) = run([0.0, 0.0], steps=q)[1:]
        assert Measure("accuracy", "time", t_comm).place(last) == cost * q


def test_the_gap_widens_with_latency():
    """Twice as many iterations in a round are worth more the dearer a round is."""
    expect = {"kind": "wider", "claim": "gap", "along": "Q", "t_comms": [10, 100], "y": "accuracy"}
    slow, fast = rising(0.01, rounds=200), rising(0.2, rounds=20)
    assert judge(expect, [line(1, slow), line(10, fast)]).held
    assert not judge({**expect, "t_comms": [100, 10]}, [line(1, slow), line(10, fast)]).held
    ahead, behind = [[0.5 + 0.002 * r for r in range(200)]], [[0.4] * 21]
    verdict = judge(
        expect, [line(1, ahead), line(10, behind)]
    )  # behind by less is not ahead by more
    assert not verdict.held, verdict


def test_the_shares_of_a_curve():
    """mean, last, best and rough, by hand."""
    figure_line = line(1, [[0.0, 1.0, 1.0, 0.0, 1.0]])
    measure = Measure("accuracy")
    assert figure_line.values(measure, 4, "mean")[0] == pytest.approx((0.5 + 1 + 0.5 + 0.5) / 4)
    assert figure_line.values(measure, 2, "mean")[0] == pytest.approx(0.75)
    assert figure_line.values(measure, 4, "last")[0] == pytest.approx(
        0.8
    )  # from 0.6 at 3.6 to 1 at 4
    assert figure_line.values(measure, 4, "best")[0] == 1
    assert figure_line.values(measure, 3, "best")[0] == 1
    assert figure_line.values(Measure("train_loss"), 4, "best")[0] == 0
    assert figure_line.values(measure, 4, "rough")[0] == pytest.approx(np.std([-1, 1]))


def test_what_was_left_out_is_not_judged():
    lines = [line(1, rising(0.1))]
    assert judge_all([ORDER], lines) == []
    assert judge_all([{**ORDER, "where": {"K": "few"}}], lines) == []
    assert len(judge_all([ORDER], [*lines, line(5, rising(0.3))])) == 1
    assert judge_all([{**ORDER, "values": [1, 5, 10]}], [*lines, line(5, rising(0.3))]) == []
    apart = [line(1, rising(0.1), K="few"), line(5, rising(0.3), K="many")]
    assert judge_all([ORDER], apart) == []


def test_a_verdict_in_words():
    verdict = judge({**ORDER, "reason": "too early"}, [line(1, rising(0.3)), line(5, rising(0.1))])
    assert str(verdict).startswith("NOT REPRODUCED: more is better: Q = 1 ")
    assert str(verdict).endswith("; margin 0; 3 seeds [likely: too early]")
    with pytest.raises(SettingError, match="did you mean 'order'"):
        judge({**ORDER, "kind": "ordr"}, [line(1, rising(0.3))])


def test_curves_as_a_table():
    head, first, *rest = as_csv([line(5, [[0.25, 0.5]])]).splitlines()
    assert head == "Q,seed,round,iteration,time,wall,train_loss,accuracy"
    assert first == "5,0,0,0,0.0,0.0,0.75,0.25"
    assert len(rest) == 1
