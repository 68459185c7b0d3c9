"""Explain: every message of a round, as the ledger has it; the run is left alone."""

import json

import pytest
import torch

from fedloom import TDCD, Central, Drawn, Run, Task, TDCDPrivateLabels, linear, partition
from fedloom.core.errors import SettingError
from fedloom.core.registry import algorithms
from fedloom.core.topology import Client
from fedloom.explain import UNPROTECTED, explain, explain_algorithm
from fedloom.explain.lanes import arrows, lanes_of, repeats
from fedloom.testing import placement, sample_of, task
from fedloom.testing.samples import examples_of


def everything():
    """Every registered algorithm's examples."""
    return [example for name in algorithms for example in examples_of(algorithms[name])]


def silos(count, algorithm=None):
    """A run over so many silos."""
    x = {f"silo {j}": torch.randn(40, 2) for j in range(count)}
    rows = partition(x, torch.randint(0, 3, (40,)), dict.fromkeys(x, 2))
    blocks = {silo: linear(2, 3) for silo in x}
    return Run(algorithm or TDCD(batch=20), Task(blocks, "cross-entropy"), rows)


@pytest.mark.parametrize("algorithm", everything(), ids=str)
@pytest.mark.parametrize("head", [False, True], ids=["plain", "head"])
def test_the_total_is_the_ledgers(algorithm, head):
    learn, rows = sample_of(algorithm, head=head and algorithm.takes_head)
    run = Run(algorithm, learn, rows, seed=4)
    explanation = explain(run)
    run.fit(1)
    assert explanation.total() == run.ledger.of_round(0)
    sent = [message for messages in explanation.by_party().values() for message in messages]
    assert sorted(map(str, sent)) == sorted(map(str, explanation.sent))
    assert sum(line.bytes for line in explanation.groups()) == run.ledger.total()
    assert sum(line.messages for line in explanation.groups()) == len(explanation.sent)


def test_the_run_is_left_alone():
    run = Run(TDCD(local_steps=2, batch=12), task(), placement(), schedule=Drawn(0.5)).fit(2)
    other = Run(TDCD(local_steps=2, batch=12), task(), placement(), schedule=Drawn(0.5)).fit(2)
    fed, state, round = run.fed, run.state, run.round
    explain(run)
    assert (run.fed is fed, run.state is state, run.round) == (True, True, round)
    assert list(run.ledger) == list(other.ledger)
    assert torch.equal(run.fit(4).predict(), other.fit(4).predict())


def test_what_leaves_each_party():
    explanation = explain_algorithm("tdcd")
    leaves = explanation.by_party()
    kinds = [message.kind for message in leaves[Client("bank", "0")]]
    assert kinds == ["embedding", "update"]
    across = [m for m in leaves["bank"] if m.kind == "hub-embedding"]
    assert [m.to for m in across] == ["insurer"]
    value, mask = across[0].shapes
    assert (value.shape, value.dtype) == ((100, 3), "float32")
    assert (mask.shape, mask.dtype) == ((100,), "bool")
    assert across[0].bytes == 100 * 3 * 4 + 100
    assert [(work.after, work.steps) for work in explanation.work] == [(4, 10)]


def test_lines_are_grouped_for_people():
    lines = explain(silos(3)).groups()
    assert [(line.move, line.source, line.to) for line in lines[:1] + lines[6:7]] == [
        (1, "hub silo 0", "each of 2 clients of silo 0"),
        (3, "every hub", "every other hub"),
    ]
    assert lines[0].shape == "3x2 float32, 3 float32"
    assert lines[6].messages == 6


def test_a_big_model_is_summed_up():
    line = next(line for line in explain(Run(TDCD(batch=9), task(), placement())).groups())
    assert line.shape == "4 tensors, 43 numbers float32"


@pytest.mark.parametrize("name", list(algorithms))
def test_in_words(name):
    explanation = explain_algorithm(name)
    text = explanation.text()
    for kind, about in explanation.about().items():
        assert kind in text
        assert about in text
    assert text.count(UNPROTECTED) >= len(explanation.about())
    assert "clients of" in text
    assert "step" in text
    assert f"{sum(m.bytes for m in explanation.sent if m.tier == 'bottom'):,} bytes" in text


def test_steps_that_repeat_are_told_once():
    explanation = explain_algorithm("tdcd-private-labels")
    assert [part.times for part in repeats(list(explanation.steps()))] == [1, 10, 1]
    text = explanation.text()
    assert "10 times:" in text
    assert text.count("derivatives of the loss") == 1
    fresh = explain(silos(2, TDCDPrivateLabels(batch=10, local_steps=4, minibatch="fresh")))
    assert [part.times for part in repeats(list(fresh.steps()))] == [1, 3, 1]


def test_the_diagram_in_characters():
    text = explain_algorithm("tdcd").text()
    assert "|<- hub-embedding ->|" in text
    assert "|<----- model ------|" in text
    assert "|---- embedding --->|" in text
    assert "[10 steps]" in text


def test_json_is_json_and_whole():
    explanation = explain_algorithm("central")
    saved = json.loads(json.dumps(explanation.to_json()))
    assert saved["algorithm"] == "central"
    assert saved["bytes"] == sum(line["bytes"] for line in saved["lines"])
    assert {line["protection"] for line in saved["lines"]} == {UNPROTECTED}
    assert set(saved["by_party"]) == {
        "bank",
        "insurer",
        *(f"{s}/{k}" for s in ("bank", "insurer") for k in "01"),
    }
    assert saved["by_party"]["bank"] == []
    assert saved["work"] == [{"after_move": 3, "at": "hubs", "places": ["bank"], "steps": 1}]


def test_many_silos_share_a_lane():
    explanation = explain(silos(12, TDCDPrivateLabels(batch=20, local_steps=2, labels_at="silo 9")))
    lanes = lanes_of(explanation, 3)
    assert [lane.party for lane in lanes] == [
        "silo 0", "silo 0", "silo 1", "silo 1", "silo 9", "silo 9", ""
    ]  # fmt: skip
    collected = next(line for line in explanation.groups() if line.kind == "hub-embedding")
    assert sorted(arrows(lanes, collected)) == [(1, 4), (2, 4), (6, 4)]
    assert "10 more" in explanation.text()


@pytest.mark.parametrize("count", [1, 2, 12])
@pytest.mark.parametrize("algorithm", [TDCD(batch=20), Central(batch=20)], ids=["tdcd", "central"])
def test_drawing(tmp_path, count, algorithm):
    explain(silos(count, algorithm)).draw(tmp_path / "new" / "round.png")
    assert (tmp_path / "new" / "round.png").read_bytes().startswith(b"\x89PNG")


def test_a_name_nobody_knows():
    with pytest.raises(SettingError, match="did you mean 'tdcd'"):
        explain_algorithm("tdcdd")


@pytest.mark.parametrize("name", ["tdcd-private-labels", "splitnn", "vafl", "splitnn-async"])
def test_it_says_that_derivatives_show_labels(name):
    assert "negative entry of a row IS its label" in " ".join(
        explain_algorithm(name).text().split()
    )
