"""Every description that is shipped: it can be read, in both sizes, and it runs."""

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from fedloom.core.registry import datasets
from fedloom.data import catalog
from fedloom.reproduce import conduct
from fedloom.reproduce.conduct import Conduct
from fedloom.reproduce.experiment import Experiment, changed, merged, names
from fedloom.reproduce.results import conclude
from fedloom.reproduce.verdicts import KINDS
from fedloom.runs import build

BESIDE = Path(__file__).parents[3] / "shared" / "data"
ROWS, BATCH = 40, 16
OWN_RUNS = [name for name in names() if Experiment.read(name).runs_name == name]


@lru_cache(maxsize=2)
def loaded(name, folder, verify, options):
    return catalog_load(name, folder, False, **dict(options))


catalog_load = catalog.load


@pytest.fixture
def data(monkeypatch):
    """Data sets where they are, each read once; a test of one that is not here is skipped."""
    root = os.environ.get("FEDLOOM_DATA") or (BESIDE if BESIDE.is_dir() else None)

    def load(name, folder=None, verify=True, **options):
        whole = loaded(name, root, verify, tuple(sorted(options.items())))
        return whole.some(min(ROWS, int((~whole.test).sum())))

    def need(name):
        places = datasets[name].places(root)
        if not any((place / file).exists() for place in places for file in datasets[name].files):
            pytest.skip(
                f"no real data: {name} is not in {root or 'FEDLOOM_DATA, which is not set'}"
            )

    monkeypatch.setattr(build.catalog, "load", load)
    return need


class TwoCurves(Experiment):
    """A description of which only the first and the last curve are run."""

    @property
    def settings(self):
        first, *_, last = super().settings
        return [first, last]


def few_rounds(experiment):
    """The same description with few rows, rounds, steps and seeds, and no search."""
    description = dict(experiment.description)
    for key in ("iterations", "every"):
        description.pop(key, None)
    if "search" in description:
        description["search"] = {
            **description["search"],
            "values": description["search"]["values"][:1],
        }
    steps = {"batch": BATCH, "rounds": 2}
    description["run"] = merged(
        description["run"], {"evaluation": {"every": 1}, "algorithm": steps}
    )
    description["run"]["data"] = {
        k: v for k, v in description["run"]["data"].items() if k != "take"
    }
    return TwoCurves(experiment.name, False, description)


JUDGED = set(names()) - {
    *("tdcd-fig3", "tdcd-fig4", "tdcd-fig5", "tdcd-fig6", "tdcd-fig7", "tdcd-fig8"),
    *("thesis-tab2", "thesis-tab8"),
}  # two curves are enough for some of what these expect


class FewSteps(Conduct):
    """With at most two local steps in a round, whatever a curve says."""

    def _planned(self, setting, seed, where, iterations, value):
        run = super()._planned(setting, seed, where, iterations, value)
        most = {"rounds": 2, "batch": BATCH}
        most["local_steps"] = min(2, run.file.values["algorithm"].get("local_steps", 1))
        known = {k: v for k, v in most.items() if k in run.file.values["algorithm"]}
        return replace(run, file=run.file.replaced("algorithm", **known))


@pytest.mark.parametrize("name", OWN_RUNS)
def test_a_description_runs_for_a_few_rounds(name, data, tmp_path):
    """Two of its curves, through to verdicts, table and figure; so do figures of the same runs."""
    experiment = few_rounds(Experiment.read(name))
    data(experiment.description["run"]["data"]["name"])
    for shown in [name, *(n for n in names() if n not in OWN_RUNS)]:
        other = Experiment.read(shown)
        if other.runs_name != name:
            continue
        expected = {
            **other.description,
            **{key: experiment.description[key] for key in ("run", "vary")},
        }
        if "search" in expected:
            expected["search"] = experiment.description["search"]
        conduct = FewSteps(TwoCurves(shown, False, expected), tmp_path, seeds=1)
        assert conduct.go()
        result = conclude(conduct, True)
        judged = [verdict["claim"] for verdict in result["verdicts"]]
        claims = [expect["claim"] for expect in other.description["expect"]]
        assert judged == [claim for claim in claims if claim in judged]
        assert bool(judged) == (shown in JUDGED)
        assert (conduct.folder / "figure.png").stat().st_size < 200_000
        assert len((conduct.folder / "curves.csv").read_text().splitlines()) > 4


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", names())
def test_a_description_is_sound(name, full):
    experiment = Experiment.read(name, full)
    for key in ("paper", "item", "title", "claim", "smaller", "panel", "expect"):
        assert experiment.description[key]
    for setting in experiment.settings:
        assert experiment.file(setting, 0, None).rounds > 0
    axes = {
        axis: {s.place[axis] for s in experiment.settings}
        for axis in experiment.description["vary"]
    }
    for expect in experiment.description["expect"]:
        assert expect["kind"] in KINDS
        assert set(expect.get("values", ())) <= axes.get(expect.get("along"), set())
    for table in (
        *experiment.description["expect"],
        *experiment.description["panel"],
        *experiment.description["number"],
    ):
        for axis, value in table.get("where", {}).items():
            assert value in axes[axis]


def test_the_order_is_complete():
    folder = Path(conduct.__file__).parent / "papers"
    assert sorted(names()) == sorted(p.stem for p in folder.glob("*.toml") if p.stem != "order")


def test_figures_with_the_same_runs_share_them():
    assert Experiment.read("tdcd-fig6").runs_name == "tdcd-fig3"
    for full in (False, True):
        first, second = (Experiment.read(name, full) for name in ("tdcd-fig3", "tdcd-fig6"))
        assert first.settings == second.settings
        assert [first.file(s, 0, None) for s in first.settings] == [
            second.file(s, 0, None) for s in second.settings
        ]


def test_the_papers_setting():
    """CIFAR-10 halves of the journal: 35,000 iterations, and as many rounds as Q makes of them."""
    full = Experiment.read("tdcd-fig3", full=True, only={"K": "fewer clients"})
    rounds = {s.place["Q"]: full.file(s, 0, "cpu").rounds for s in full.settings}
    assert rounds == {1: 35000, 10: 3500, 20: 1750, 30: 1167}
    file = full.file(full.settings[0], 0, "cpu")
    assert file.partition.clients == 50
    assert file.values["algorithm"]["batch"] == 2000
    assert file.values["model"]["width"] == 64


def test_another_algorithm_keeps_what_it_knows():
    tables = {"algorithm": {"name": "vafl", "lr": 0.2, "group": 2, "rounds": 3}}
    assert changed(tables, {"algorithm": {"name": "central"}}) == {
        "algorithm": {"name": "central", "lr": 0.2, "rounds": 3}
    }
    other = {"data": {"name": "sqoe4", "threshold": 70.0}}
    assert changed(other, {"data": {"name": "ames"}}) == {"data": {"name": "ames"}}
