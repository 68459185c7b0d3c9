"""The real sets are what their descriptions say."""

import hashlib
import re

import numpy as np
import pytest
import torch

from fedloom.core.registry import datasets
from fedloom.data.catalog import checksum

REAL = [
    "adult",
    "ames",
    "cifar10-subset",
    "coil20",
    "credit-default",
    "mfeat",
    "mnist",
    "modelnet10",
    "parkinson",
    "physionet2012",
    "sqoe4",
    "superconductivity",
]


def counts(d, test):
    return torch.bincount(d.y[d.test == test]).tolist()


def sound(d, train, test):
    """What every set must be; its one block, or all of them."""
    assert int((~d.test).sum()) == train
    assert int(d.test.sum()) == test
    assert d.y.dtype == (torch.float32 if d.goal == "number" else torch.int64)
    for x in d.blocks.values():
        assert x.dtype == torch.float32
        assert torch.isfinite(x).all()
    assert torch.isfinite(d.y).all()
    assert set(d.sources) == set(datasets[d.name].files)
    return next(iter(d.blocks.values())) if len(d.blocks) == 1 else d.blocks


def standardised(d, x):
    """Mean 0 and deviation 1 over the training rows, and not over all."""
    seen = x[~d.test].reshape(-1, x.shape[-1]).double()
    assert seen.mean(0).abs().max() < 1e-4
    assert (seen.std(0, correction=0) - 1).abs().max() < 1e-3
    assert x.reshape(-1, x.shape[-1]).double().mean(0).abs().max() > 1e-4


@pytest.mark.parametrize("name", REAL)
def test_checksums_are_those_of_the_provenance(name, folder):
    recorded = dict(
        re.findall(r"^- (\S+)  ([0-9a-f]{64})", (folder(name) / "PROVENANCE.md").read_text(), re.M)
    )
    for file, wanted in datasets[name].files.items():
        if file.endswith(".gz"):  # the provenance has the sum of the packed file
            assert hashlib.sha256((folder(name) / file).read_bytes()).hexdigest() == recorded[file]
            assert checksum(folder(name) / file) == wanted
        else:
            assert recorded[file] == wanted


def test_the_split_is_the_same_every_time(real):
    assert (real("ames").test == real("ames").test).all()


def test_mnist(real):
    d = real("mnist")
    x = sound(d, 60_000, 10_000)
    assert x.shape == (70_000, 1, 28, 28)
    assert counts(d, False) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(d, True) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert float(x[:60_000].mean()) == pytest.approx(0.1307, abs=1e-4)
    assert float(x[:60_000].std()) == pytest.approx(0.3081, abs=1e-4)
    assert (float(x.min()), float(x.max())) == (0, 1)
    assert d.y[:5].tolist() == [5, 0, 4, 1, 9]


def test_cifar10_subset(real):
    d = real("cifar10-subset")
    x = sound(d, 20_000, 4_000)
    assert x.shape == (24_000, 3, 32, 32)
    assert counts(d, False) == [2000] * 10
    assert counts(d, True) == [400] * 10
    assert x.mean((0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-3)
    assert x.std((0, 2, 3)).tolist() == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-3)
    assert d.classes[0] == "airplane"
    assert d.classes[9] == "truck"
    assert d.ids[~d.test].max() < 50_000 <= d.ids[d.test].min()
    # Neighbouring pixels agree where tiles were cut in the right places and directions.
    for step in (x.diff(dim=2), x.diff(dim=3)):
        assert step.abs().mean() < 0.08


def test_superconductivity(real):
    d = real("superconductivity", standardise=False)
    x = sound(d, 20_000, 1_263)
    assert x.shape == (21_263, 81)
    assert d.goal == "number"
    assert d.columns["features"][:2] == ("number_of_elements", "mean_atomic_mass")
    y = d.y.double()
    assert float(y.mean()) == pytest.approx(34.4212, abs=1e-3)
    assert float(y.std()) == pytest.approx(34.2544, abs=1e-3)
    assert (float(y.min()), float(y.max())) == pytest.approx((0.00021, 185))
    assert "RECONSTRUCTED" in d.note


def test_superconductivity_standardised(real):
    d = real("superconductivity")
    standardised(d, sound(d, 20_000, 1_263))
    standardised(d, d.y[:, None])
    mean, spread = map(float, re.search(r"value - (\S+)\) / (\S+)", d.note).groups())
    plain = real("superconductivity", standardise=False)
    assert torch.allclose(d.y * spread + mean, plain.y, atol=1e-2)


def test_superconductivity_first_rows(real):
    d = real("superconductivity", rows=1_000)
    sound(d, 941, 59)
    whole = real("superconductivity", standardise=False)
    part = real("superconductivity", standardise=False, rows=1_000)
    assert torch.equal(part.blocks["features"], whole.blocks["features"][:1_000])


def test_superconductivity_needs_at_least_four_rows(real):
    with pytest.raises(ValueError, match=r"rows = 0 is not in 4\.\.21263"):
        real("superconductivity", rows=0)


@pytest.mark.parametrize(("part", "deaths"), [("b", 568), ("c", 585)])
def test_physionet2012(real, part, deaths):
    d = real("physionet2012", test_set=part)
    x = sound(d, 4_000, 4_000)
    assert x.shape == (8_000, 48, 76)
    assert d.goal == "binary"
    assert counts(d, False) == [3446, 554]
    assert counts(d, True) == [4000 - deaths, deaths]
    standardised(d, x[:, :, :37])
    assert set(x[:, :, 37:74].unique().tolist()) == {0, 1}
    standardised(d, x[:, :, 74:75])
    assert set(x[:, :, 75].unique().tolist()) == {0, 1}
    assert (x[:, :1, 74:] == x[:, :, 74:]).all()
    assert (~x[:4000, :, 37:74].bool().any(2).any(1)).sum() == 3
    units, sizes = np.unique(d.keys["icu"][~d.test], return_counts=True)
    assert dict(zip(units, sizes, strict=True)) == {
        "coronary": 577,
        "cardiac_surgery": 874,
        "medical": 1481,
        "surgical": 1068,
    }
    assert "stand-in for MIMIC-III" in d.note


def test_physionet2012_with_fewer_channels(real):
    d = real("physionet2012", channels=37)
    assert d.blocks["series"].shape == (8_000, 48, 37)


def test_modelnet10(real):
    d = real("modelnet10")
    blocks = sound(d, 3_980, 907)
    assert list(blocks) == [f"view{k:02}" for k in range(12)]
    assert all(x.shape == (4_887, 1, 32, 32) for x in blocks.values())
    assert sum(counts(d, False)) == 3_980
    assert counts(d, False) == [97, 515, 889, 200, 200, 465, 200, 680, 391, 343]
    assert counts(d, True) == [50, 100, 100, 85, 86, 100, 86, 100, 100, 100]
    assert all((x.flatten(1).amax(1) > 0).all() for x in blocks.values())
    assert max(float(x.max()) for x in blocks.values()) <= 1
    assert d.classes[0] == "bathtub"
    assert d.ids.max() == 3_991 + 908 - 1


def test_coil20(real, folder):
    d = real("coil20")
    blocks = sound(d, 80, 40)
    assert len(blocks) == 12
    assert all(x.shape == (120, 1, 32, 32) for x in blocks.values())
    assert counts(d, False) == [4] * 20
    assert set(d.keys["offset"][d.test]) == {4, 5}
    assert "demo set" in d.note
    with np.load(folder("coil20") / "coil20_72views_32.npz") as file:
        photographs = torch.tensor(file["X"]) / 255
    sample = torch.stack([x[3 * 6 + 4, 0] for x in blocks.values()])  # object 3, offset 4
    assert torch.allclose(sample, photographs[3, 4::6])


def test_mfeat(real):
    d = real("mfeat")
    blocks = sound(d, 1_500, 500)
    widths = {"fou": 76, "fac": 216, "kar": 64, "pix": 240, "zer": 47, "mor": 6}
    assert {name: x.shape[1] for name, x in blocks.items()} == widths
    assert torch.bincount(d.y).tolist() == [200] * 10
    for x in blocks.values():
        standardised(d, x)
    assert min(counts(d, True)) > 30


def test_credit_default(real):
    d = real("credit-default")
    blocks = sound(d, 22_500, 7_500)
    widths = {"demographics": 5, "repayment": 6, "bills": 6, "payments": 6}
    assert {name: x.shape[1] for name, x in blocks.items()} == widths
    assert int(d.y.sum()) == 6_636
    assert d.columns["demographics"] == ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE")
    assert sorted(d.ids) == list(range(1, 30_001))
    assert set(d.keys) == {"SEX", "EDUCATION", "MARRIAGE"}
    for x in blocks.values():
        standardised(d, x)


@pytest.mark.parametrize(
    ("which", "train", "test", "price"),
    [("2930", 2_050, 878, 180_796), ("1460", 1_022, 438, 180_921)],
)
def test_ames(real, which, train, test, price):
    d = real("ames", which=which)
    x = sound(d, train, test)
    assert x.shape[1] == 9
    assert d.columns["features"][0] == "Fireplaces"
    assert d.columns["features"][8] == "BedroomAbvGr"
    standardised(d, x)
    standardised(d, d.y[:, None])
    mean, spread = map(float, re.search(r"value - (\S+)\) / (\S+)", d.note).groups())
    assert float(d.y.mean()) * spread + mean == pytest.approx(price, abs=100)
    assert ("2 rows with an empty cell dropped" in d.note) == (which == "2930")
    assert (len(d.ids), d.ids.max()) == ((2_928, 2_930) if which == "2930" else (1_460, 1_460))


@pytest.mark.parametrize(
    ("device", "rows", "positive"),
    [("hdtv", 450, 0.682), ("phone", 450, 0.693), ("uhdtv", 450, 0.771)],
)
def test_sqoe4(real, device, rows, positive):
    d = real("sqoe4", device=device)
    x = sound(d, 315, 135)
    assert x.shape == (rows, 9)
    standardised(d, x)
    assert float(d.y.double().mean()) == pytest.approx(positive, abs=5e-4)
    assert set(d.keys["device"]) == {device}
    assert not any("vmaf" in name or "ssim" in name for name in d.columns["features"])


def test_sqoe4_on_all_devices_keeps_a_condition_on_one_side(real):
    d = real("sqoe4", device="all")
    sound(d, 945, 405)
    parts = [d.keys[name].astype(str) for name in ("content", "encoder", "abr", "trace")]
    conditions = np.array(["/".join(row) for row in zip(*parts, strict=True)])
    assert len(set(conditions)) == 450
    assert not set(conditions[d.test]) & set(conditions[~d.test])


def test_sqoe4_threshold(real):
    assert real("sqoe4", threshold=40.0).y.sum() > real("sqoe4").y.sum()
    with pytest.raises(ValueError, match="one class only"):
        real("sqoe4", threshold=101.0)


@pytest.mark.parametrize(
    ("form", "shape", "negative", "positive", "people"),
    [
        ("patients", (252, 751), 64, 188, 252),
        ("recordings", (756, 147), 192, 564, 252),
        ("oxford", (195, 22), 48, 147, 32),
    ],
)
def test_parkinson(real, form, shape, negative, positive, people):
    d = real("parkinson", form=form)
    x = sound(d, int((~d.test).sum()), int(d.test.sum()))
    assert x.shape == shape
    assert torch.bincount(d.y).tolist() == [negative, positive]
    patient = d.keys["patient"]
    assert len(set(patient)) == people
    assert not set(patient[d.test]) & set(patient[~d.test])
    assert len(set(patient[d.test])) == pytest.approx(0.3 * people, abs=1)
    assert min(counts(d, True)) > 1
    standardised(d, x)  # some columns are of order 1e-20
    assert ("gender" in d.keys) == (form != "oxford")
    assert ("LEAK" in d.note) == (form == "recordings")


def test_parkinson_tests_the_same_patients_in_both_forms(real):
    means, recordings = real("parkinson"), real("parkinson", form="recordings")
    tested = set(recordings.keys["patient"][recordings.test])
    assert set(means.keys["patient"][means.test]) == tested
    assert (means.keys["gender"] == recordings.keys["gender"][::3]).all()


def test_adult(real):
    d = real("adult")
    x = sound(d, 24_421, 8_140)
    names = d.columns["features"]
    assert x.shape == (32_561, 6 + 102)
    assert torch.bincount(d.y).tolist() == [24_720, 7_841]
    assert "education=Bachelors" in names
    standardised(d, x[:, :6])
    assert set(x[:, 6:].unique().tolist()) == {0, 1}
    assert (x[:, 6:].sum(1) == 8).all()
    unknown = [k for k, name in enumerate(names) if name.endswith("=?")]
    assert int(x[:, unknown].sum()) == 4_262
    kinds = [name for name in names if name.startswith("education=")]
    assert kinds == sorted(kinds)
    first = {"workclass": "State-gov", "education": "Bachelors", "native_country": "United-States"}
    assert {name: d.keys[name][0] for name in first} == first
    assert x[0, names.index("education=Bachelors")] == 1
