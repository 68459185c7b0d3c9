"""Run files: valid and invalid ones, overrides, and that a written file reads the same."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import TDCD, Cosine, HubAdam
from fedloom.config.lines import key_lines
from fedloom.config.reference import page
from fedloom.config.runfile import SECTIONS, RunFile
from fedloom.core.errors import SettingError
from fedloom.core.toml import dumps
from fedloom.runs.build import build_data, build_task

ROOT = Path(__file__).parents[2]

TEXT = """\
[data]
name = "digits"

[partition]
silos = ["north", "east"]
clients = [3, 2]

[model]
name = "mlp"
hidden = [8]

[algorithm]
name = "tdcd"
lr = 0.1
rounds = 4
"""
LOSS, EVALUATION = "hidden = [8]\nloss = ", "[evaluation]\nthreshold = "


def test_defaults_are_filled_in():
    file = RunFile.parse('[data]\nname = "iris"\n[algorithm]\n[model]\n')
    assert set(file.values) == set(SECTIONS)
    assert file.algorithm == TDCD()
    assert file.values["model"]["name"] == "linear"
    assert file.rounds == 100
    assert file.every == 5


def test_a_file_without_model_and_algorithm_suits_tables():
    text = '[data]\nname = "iris"\n'
    first = TDCD(local_steps=5, lr=0.05, minibatch="fresh", hub=HubAdam(lr=0.01))
    file = RunFile.parse(text)
    assert (file.algorithm, file.rounds) == (first, 1000)
    assert (file.values["model"]["name"], file.values["model"]["hidden"]) == ("mlp", [32])
    assert RunFile.parse(file.to_toml()).values == file.values
    changed = RunFile.parse(text, ["algorithm.lr=0.1", "model.hidden=[8]"])
    assert changed.algorithm == replace(first, lr=0.1)
    assert changed.values["model"]["hidden"] == [8]
    assert RunFile.parse(text, ["algorithm.epochs=3"]).epochs == 3
    other = RunFile.parse(text, ["algorithm.name=tdcd", "algorithm.lr=0.2", "model.name=linear"])
    assert (other.algorithm, other.rounds) == (TDCD(lr=0.2), 100)
    with pytest.raises(SettingError, match=r"section\.key=value is expected"):
        RunFile.parse(text, ["algorithm=3"])


def test_the_resolved_file_is_a_run_file():
    file = RunFile.parse(TEXT, ["algorithm.batch=none", "network.speed={north = 2}"])
    again = RunFile.parse(file.to_toml())
    assert again.values == file.values
    assert again.algorithm.batch is None
    assert again.to_toml() == file.to_toml()


def test_a_loss_with_settings():
    weights = "{setosa = 1, versicolor = 2.5, virginica = 1}"
    loss = f'loss = {{name = "cross-entropy", class_weights = {weights}}}'
    file = RunFile.parse(f'[data]\nname = "iris"\n[model]\n{loss}\n[evaluation]\nthreshold = 0.3')
    assert file.values["model"]["loss"]["class_weights"]["versicolor"] == 2.5
    assert file.values["model"]["loss"]["label_smoothing"] == 0
    assert RunFile.parse(file.to_toml()).values == file.values
    task = build_task(file, build_data(file))
    assert task.loss.class_weights == (1.0, 2.5, 1.0)
    plain = RunFile.parse('[data]\nname = "iris"\n[model]\nloss = "cross-entropy"')
    assert plain.values["model"]["loss"] == "cross-entropy"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lr = 0.1", "learning = 0.1", "14: algorithm.learning: unknown key 'learning'"),
        ("lr = 0.1", "local_stepz = 1", "14: .* did you mean 'local_steps'"),
        ("lr = 0.1", 'lr = "fast"', "14: algorithm.lr: a number or a table with a rule"),
        ("lr = 0.1", "local_steps = 1.5", "14: .*a whole number is expected, not 1.5"),
        ("lr = 0.1", "local_steps = true", "14: .*a whole number is expected, not true"),
        ("lr = 0.1", 'weighting = "row"', "14: .*did you mean 'rows'"),
        ("lr = 0.1", 'lr = {rule = "cosin"}', "14: .*did you mean 'cosine'"),
        ("lr = 0.1", 'lr = {rule = "cosine", lr = 1}', "14: .*'steps' is missing"),
        ("rounds = 4", "rounds = 0", "15: .*at least 1"),
        ("hidden = [8]", 'hidden = ["a"]', "10: .*a whole number is expected"),
        ("hidden = [8]", "", "8: model: the key 'hidden' is missing"),
        ("clients = [3, 2]", 'clients = "many"', "6: partition.clients"),
        ('name = "digits"', 'name = "digit"', "2: .*did you mean 'digits'"),
        ('name = "digits"', 'name = "digits"\nflat = true', "3: data.flat: unknown key"),
        ('name = "tdcd"', 'name = "tdc"', "13: .*did you mean 'tdcd'"),
        ("hidden = [8]", LOSS + '"hubber"', "11: model.loss: .*did you mean 'huber'"),
        ("hidden = [8]", LOSS + "{delta = 1}", "11: model.loss: say its `name`"),
        (
            "hidden = [8]",
            LOSS + '{name = "huber", class_weights = "balanced"}',
            "11: model.loss.class_weights: .*for losses of classes .*, not for huber",
        ),
        (
            "hidden = [8]",
            LOSS + '{name = "quantile", quantile = 2}',
            "11: model.loss.quantile: must be above 0 and below 1, not 2",
        ),
        (
            "hidden = [8]",
            LOSS + '{name = "cross-entropy", class_weights = [1, -1]}',
            "11: model.loss: class_weights must be at least 0, not -1",
        ),
        ("[model]", EVALUATION + "2\n[model]", "9: .*above 0 and below 1, not 2"),
        ("[model]", EVALUATION + '"f2"\n[model]', "9: evaluation.threshold: .*choices"),
        ("[model]", EVALUATION + "{missed = 0}\n[model]", "9: .*missed must be above 0"),
        ("[model]", "[modle]", "8: modle: unknown section; did you mean 'model'"),
        ("[data]", "[data", "not valid TOML"),
    ],
)
def test_messages_of_mistakes(old, new, message):
    assert old in TEXT
    with pytest.raises(SettingError, match=message):
        RunFile.parse(TEXT.replace(old, new))


def test_overrides():
    file = RunFile.parse(
        TEXT, ["algorithm.lr={rule = 'cosine', lr = 0.5, steps = 9}", "model.hidden=[4, 4]"]
    )
    assert file.algorithm.lr == Cosine(0.5, 9)
    assert file.values["model"]["hidden"] == [4, 4]
    assert RunFile.parse(TEXT, ["output.title=plain words"]).output.title == "plain words"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.lr", "section.key=value is expected"),
        ("lr=3", "section.key=value is expected"),
        ("engine.seed=x", "--set engine.seed: a whole number"),
        ("engin.seed=1", "--set engin: unknown section; did you mean 'engine'"),
        ("algorithm.lr.x.y=1", "is not a table"),
    ],
)
def test_wrong_overrides(override, message):
    with pytest.raises(SettingError, match=message):
        RunFile.parse(TEXT, [override])


def test_models_by_silo_and_heads():
    more = '[model.silos.east]\nhidden = [5]\n[model.head]\nname = "mlp"\nhidden = [3]\n'
    model = RunFile.parse(TEXT + more).values["model"]
    assert model["silos"] == {"east": {"name": "mlp", "hidden": [5], "norm": "none"}}
    assert model["head"] == {"name": "mlp", "hidden": [3], "norm": "none"}
    more = '[model.middle]\nname = "mlp"\nhidden = [2]\n'
    assert RunFile.parse(TEXT + more).values["model"]["middle"] == {
        "name": "mlp",
        "hidden": [2],
        "norm": "none",
    }
    with pytest.raises(SettingError, match=r"17: model\.silos.east\.width: unknown key"):
        RunFile.parse(TEXT + "[model.silos.east]\nwidth = 5\n")


def test_files_are_relative_to_the_run_file(tmp_path):
    path = tmp_path / "deep" / "run.toml"
    path.parent.mkdir()
    path.write_text('[data.silos]\nbank = {north = "n.csv"}\nshop = "../s.csv"\n')
    silos = RunFile.read(path).values["data"]["silos"]
    assert Path(silos["bank"]["north"]) == tmp_path / "deep" / "n.csv"
    assert Path(silos["shop"]).resolve() == tmp_path / "s.csv"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingError, match=r"there is no run file .*run\.toml"):
        RunFile.read(tmp_path / "run.toml")


words = st.text("ab_-", min_size=1, max_size=4)
values = st.recursive(
    st.integers(-5, 5) | words,
    lambda inner: st.dictionaries(words, inner, min_size=1, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(words, st.dictionaries(words, values, min_size=1), min_size=1))
def test_lines_are_found(tables):
    text = dumps(tables)
    lines, read = key_lines(text), tomllib.loads(text)
    for path, line in lines.items():
        node = read
        for key in path:
            node = node[key]
        assert path[-1] in text.splitlines()[line - 1]


leaves = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
anything = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(), anything))
def test_what_is_written_reads_the_same(tables):
    assert tomllib.loads(dumps(tables)) == tables


def test_silos_keep_their_order_in_a_file_that_is_written():
    """It is the order of hubs, and who is first; a silo of one file may stand anywhere."""
    text = "[data]\nlabel = 'y'\n[data.silos]\nbank = {a = 'a.csv', b = 'b.csv'}\nshop = 's.csv'\n"
    file = RunFile.parse(text + "clinic = {east = 'e.csv'}\n")
    silos = RunFile.parse(file.to_toml()).values["data"]["silos"]
    assert list(silos) == ["bank", "shop", "clinic"]
    assert silos == file.values["data"]["silos"]


def test_the_reference_is_that_of_the_code():
    text = (ROOT / "docs" / "run-file.md").read_text()
    assert text == page(), "run: python -m fedloom.config.reference > docs/run-file.md"
