"""Equal where a run is the same, different where it is not."""

import json

import pytest

from fedloom.config.fingerprint import fingerprint
from fedloom.config.runfile import RunFile

RUN = '[data]\nname = "iris"\n[algorithm]\nlr = 0.05\n'


def printed(text, *overrides, **more):
    return fingerprint(RunFile.parse(text, overrides), **more)


def test_defaults_and_the_order_of_keys_do_not_matter():
    other = '[algorithm]\nrounds = 100\nlr = 0.05\nname = "tdcd"\n[data]\nname = "iris"\n'
    assert printed(RUN) == printed(other)


@pytest.mark.parametrize(
    "override",
    [
        "engine.device=cuda",
        "engine.threads=2",
        "engine.name=reference",
        "data.folder=elsewhere",
        "output.title=mine",
        "evaluation.every=3",
    ],
)
def test_what_is_a_partys_own_is_in_no_fingerprint(override):
    assert printed(RUN, override) == printed(RUN)


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.lr=0.06",
        "algorithm.rounds=7",
        "engine.seed=1",
        "engine.precision=float64",
        "model.loss=squared",
        "partition.clients=5",
        "data.name=wine",
    ],
)
def test_what_changes_the_run_changes_it(override):
    assert printed(RUN, override) != printed(RUN)


def test_tables_count_by_whose_they_are(tmp_path):
    text = '[data.silos.bank]\nnorth = "{0}/n.csv"\nsouth = "{0}/s.csv"\n'
    assert printed(text.format("/here")) == printed(text.format("/there"))
    assert printed(text.format("/here")) != printed(text.replace("south", "east").format("/here"))


def test_what_was_agreed_and_what_is_replayed_count(tmp_path):
    assert printed(RUN, agreed={"rows": 3}) != printed(RUN, agreed={"rows": 4})
    prints = set()
    for place, rounds in (("a", 3), ("b", 3), ("c", 4)):
        path = tmp_path / f"{place}.json"
        path.write_text(json.dumps({"rounds": rounds, "dropped": []}))
        prints.add(printed(RUN, f"engine.schedule={path}"))
    assert len(prints) == 2
