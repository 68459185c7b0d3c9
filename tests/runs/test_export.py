"""Trained models out of their runs: the same predictions, saved and loaded."""

import pytest
import torch
from torch import nn

from fedloom import TDCD, Alone, Central, Run, Task, load_dataset, load_model
from fedloom.core import errors
from fedloom.data.partition.partition import Partition, place

SETTINGS = {"local_steps": 2, "lr": 0.05, "batch": 40}


def data(name="iris", **partition):
    found = load_dataset(name)
    return place(found, Partition(silos=["left", "right"], clients=[2, 3], **partition).cut(found))


def close(a, b):
    return torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("combine", ["sum", "concat"])
@pytest.mark.parametrize("algorithm", [TDCD(**SETTINGS), Central(**SETTINGS)])
def test_a_joint_model_predicts_as_its_run(algorithm, combine, tmp_path):
    rows = data()
    task = Task.of(rows, "mlp", hidden=[5], embedding=4, head="linear", combine=combine)
    run = Run(algorithm, task, rows).fit(3)
    again = load_model(run.save(tmp_path / "model"))
    for model in (run.trained(), again):
        assert close(model.predict(rows.test), run.predict(rows.test))
        assert model.evaluate(rows.test) == pytest.approx(run.evaluate())
    assert again.classes == rows.classes
    assert close(again.probabilities(again.predict(rows.test)).sum(1), torch.ones(rows.test.size))


@pytest.mark.parametrize("combined", [True, False])
def test_lone_silos(combined, tmp_path):
    rows = data()
    task = Task.of(rows, "linear", embedding=4, head="linear")
    run = Run(Alone(**SETTINGS, combined=combined), task, rows).fit(3)
    model = load_model(run.save(tmp_path))
    if combined:
        assert close(model.predict(rows.test), run.predict(rows.test))
        return
    for silo in ("left", "right"):
        assert close(model.predict(rows.test, at=silo), run.predict(rows.test, at=silo))
    with pytest.raises(errors.SettingError, match="predict alone"):
        model.predict(rows.test)


@pytest.mark.parametrize("name", ["digits", "diabetes", "breast-cancer"])
def test_models_are_sized_by_the_data(name, tmp_path):
    rows = data(name)
    run = Run(TDCD(local_steps=1, lr=0.01, batch=20), Task.of(rows, "mlp", hidden=[4]), rows).fit(1)
    assert close(load_model(run.save(tmp_path)).predict(rows.test), run.predict(rows.test))
    assert run.evaluate()


def own_block():
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3))


def test_modules_of_ones_own_are_given_again(tmp_path):
    rows = data()
    task = Task(dict.fromkeys(("left", "right"), own_block), "cross-entropy")
    run = Run(TDCD(**SETTINGS), task, rows).fit(2)
    run.save(tmp_path)
    with pytest.raises(errors.ModelError, match="give the function that makes it"):
        load_model(tmp_path)
    model = load_model(tmp_path, blocks={"left": own_block, "right": own_block})
    assert close(model.predict(rows.test), run.predict(rows.test))
    wrong = {"left": own_block, "right": lambda: nn.Linear(2, 3)}
    with pytest.raises(errors.DataError, match="damaged"):
        load_model(tmp_path, blocks=wrong)


def test_double_precision_is_kept(tmp_path):
    rows = data()
    run = Run(TDCD(**SETTINGS), Task.of(rows), rows, precision="float64").fit(1)
    model = load_model(run.save(tmp_path))
    assert model.predict(rows.test).dtype == torch.float64
    assert torch.allclose(model.predict(rows.test), run.predict(rows.test), atol=1e-14)


def test_what_is_refused(tmp_path):
    rows = data()
    with pytest.raises(errors.DataError, match="holds no model"):
        load_model(tmp_path / "nowhere")
    run = Run(TDCD(**SETTINGS), Task.of(rows), rows)
    with pytest.raises(errors.SettingError, match="nothing is trained"):
        run.save(tmp_path)
    model = run.fit(1).trained()
    with pytest.raises(errors.DataError, match="not trained on tables"):
        model.predict_tables({"left": "x.csv"})
    with pytest.raises(errors.DataError, match="rows of"):
        model.predict({"left": rows.test.x["left"]})
    (tmp_path / "model").mkdir()
    (run.save(tmp_path / "model") / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(errors.DataError, match="damaged"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"model": "cnn"}, "wants images"),
        ({"model": "mlp"}, "needs 'hidden'"),
        ({"model": "linear", "hidden": [3]}, "no setting 'hidden'"),
        ({"model": "linear", "embedding": 3}, "embedding and head go together"),
        ({"model": "linear", "silos": {"up": {}}}, "no silo 'up'"),
        ({"model": "linaer"}, "did you mean 'linear'"),
    ],
)
def test_models_that_do_not_fit(settings, error):
    with pytest.raises((errors.ModelError, errors.SettingError), match=error):
        Task.of(data(), **settings)


def test_a_notebook_shows_the_curve():
    rows = data()
    run = Run(TDCD(**SETTINGS), Task.of(rows), rows)
    assert run._repr_png_() is None
    assert run.fit(2, every=1)._repr_png_().startswith(b"\x89PNG")
    assert "TDCD" in repr(run)
    assert "round 2" in repr(run)
