"""Sets whose files cannot be passed on, on small files made in their formats."""

import gzip
import pickle
import struct

import numpy as np
import pytest
import torch

import fedloom.data.datasets  # noqa: F401
from fedloom.core.errors import DataError, SettingError
from fedloom.data.catalog import load
from fedloom.data.datasets.common import moments, split_groups, standardise
from fedloom.data.datasets.images.cifar10 import PARTS
from fedloom.data.datasets.images.idx import NAMES, read_idx

DRAW = np.random.default_rng(7)


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def clothes(folder, packed, train=None, test=None):
    """Four idx files; returns the images."""
    train = np.repeat(np.arange(10), 3) if train is None else train
    test = np.arange(10) if test is None else test
    x = DRAW.integers(0, 256, (len(train) + len(test), 28, 28)).astype(np.uint8)
    parts = (x[: len(train)], train.astype(np.uint8), x[len(train) :], test.astype(np.uint8))
    for name, part in zip(NAMES, parts, strict=True):
        file = folder / (f"{name}.gz" if packed else name)
        file.write_bytes(gzip.compress(idx(part)) if packed else idx(part))
    return x


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(tmp_path, packed):
    home = tmp_path / "fashion-mnist"
    home.mkdir()
    x = clothes(home, packed)
    d = load("fashion-mnist", tmp_path)
    assert d.blocks["pixels"].shape == (40, 1, 28, 28)
    assert torch.equal(d.blocks["pixels"][:, 0], torch.tensor(x) / 255)
    assert d.y.dtype == torch.int64
    assert d.y.tolist() == [k for k in range(10) for _ in range(3)] + list(range(10))
    assert d.test.tolist() == [False] * 30 + [True] * 10
    assert d.classes[9] == "Ankle boot"
    assert set(d.sources) == {f"{name}.gz" for name in NAMES}


def test_fashion_mnist_is_not_mnist(tmp_path):
    clothes(tmp_path, True, train=np.array([5, 0, 4, 1, 9, 2]))
    with pytest.raises(DataError, match="are these MNIST's files"):
        load("fashion-mnist", tmp_path)


def test_fashion_mnist_refuses_labels_that_do_not_exist(tmp_path):
    clothes(tmp_path, True, test=np.array([0, 10]))
    with pytest.raises(DataError, match=r"labels outside 0\.\.9"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1], "holds 99 bytes, its header says 100"),
        (lambda raw: raw + b"x", "holds 101 bytes, its header says 100"),
        (lambda raw: raw[:6], "cannot be read"),
        (lambda raw: b"", "not an idx file"),
        (lambda raw: b"\0\0\x0d" + raw[3:], "not an idx file"),
        (lambda raw: gzip.compress(raw)[:-5], "cannot be read"),
    ],
)
def test_idx_refuses_what_does_not_add_up(tmp_path, change, message):
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(change(idx(np.zeros((4, 25), dtype=np.uint8))))
    with pytest.raises(DataError, match=f"train-labels-idx1-ubyte.*{message}"):
        read_idx(path)


def test_fashion_mnist_images_and_labels_must_be_as_many(tmp_path):
    clothes(tmp_path, False)
    (tmp_path / NAMES[1]).write_bytes(idx(np.zeros(29, dtype=np.uint8)))
    with pytest.raises(DataError, match="40 ids, 39 rows of labels"):
        load("fashion-mnist", tmp_path)


def photographs(folder, rows=2):
    """The six files of the binary version; returns labels and images."""
    y, x = [], []
    for name in [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]:
        y.append(DRAW.integers(0, 10, (rows, 1)).astype(np.uint8))
        x.append(DRAW.integers(0, 256, (rows, 3, 32, 32)).astype(np.uint8))
        (folder / name).write_bytes(np.hstack([y[-1], x[-1].reshape(rows, -1)]).tobytes())
    return np.concatenate(y)[:, 0], np.concatenate(x)


def test_cifar10(tmp_path):
    home = tmp_path / "cifar-10-batches-bin"
    home.mkdir()
    y, x = photographs(home)
    d = load("cifar10", tmp_path)
    assert torch.equal(d.blocks["pixels"], torch.tensor(x) / 255)
    assert d.y.tolist() == y.tolist()
    assert d.test.tolist() == [False] * 10 + [True] * 2
    assert d.note == "12 images, not the official 6 x 10,000"


def test_cifar10_refuses_a_cut_file(tmp_path):
    photographs(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin: 6145 bytes are not records"):
        load("cifar10", tmp_path)


def test_cifar10_for_python_is_read_without_unpickling(tmp_path):
    """Protocol 2, as the official files are; a pickle that would run code is only looked at."""
    home = tmp_path / "cifar-10-batches-py"
    home.mkdir()
    draw = np.random.default_rng(0)
    written = []
    for part in PARTS:
        images, labels = draw.integers(0, 256, (20, 3072), dtype=np.uint8), draw.integers(0, 10, 20)
        written.append((images, labels))
        saved = {"batch_label": part, "labels": labels.tolist(), "data": images, "filenames": ["x"]}
        (home / part).write_bytes(pickle.dumps(saved, protocol=2))
    d = load("cifar10-python", tmp_path)
    assert d.size == 120
    assert d.test.sum() == 20
    assert np.array_equal((d.blocks["pixels"][:20] * 255).round().flatten(1), written[0][0])
    assert d.y[20:40].tolist() == written[1][1].tolist()
    (home / "test_batch").write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(DataError, match="test_batch is not a batch of CIFAR-10"):
        load("cifar10-python", tmp_path)


class Bomb:
    def __reduce__(self):
        return exit, (3,)


def stays(folder, **changed):
    for file, rows in (("train", 6), ("test", 4)):
        given = {
            "X": DRAW.normal(size=(rows, 48, 76)).astype(np.float32),
            "y": np.arange(rows) % 2,
        }
        np.savez(folder / f"{file}.npz", **(given | changed))


def test_mimic3_ihm(tmp_path):
    home = tmp_path / "mimic3-ihm"
    home.mkdir()
    stays(home)
    d = load("mimic3-ihm", tmp_path)
    with np.load(home / "test.npz") as test:
        assert torch.equal(d.blocks["series"][6:], torch.tensor(test["X"]))
    assert d.blocks["series"].shape == (10, 48, 76)
    assert d.y.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert d.test.tolist() == [False] * 6 + [True] * 4
    assert (d.goal, d.y.dtype) == ("binary", torch.int64)


def test_mimic3_ihm_takes_the_benchmarks_doubles_and_lists(tmp_path):
    stays(tmp_path, X=np.ones((3, 48, 76)), y=[0.0, 1.0, 0.0])
    d = load("mimic3-ihm", tmp_path)
    assert d.blocks["series"].dtype == torch.float32
    assert d.y.tolist() == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"X": np.zeros((5, 48, 60))}, r"train\.npz: X is \(5, 48, 60\)"),
        ({"y": np.zeros(99)}, r"train\.npz: X is .* and y \(99,\)"),
        ({"X": np.full((2, 48, 76), np.nan), "y": np.zeros(2)}, "NaN or infinity"),
        ({"X": np.zeros((2, 48, 76)), "y": np.array([0, 2])}, r"labels outside 0\.\.1"),
        ({"X": np.zeros((2, 48, 76)), "y": np.array([0, 0.5])}, r"labels outside 0\.\.1"),
        ({"y": np.array([None, 1], dtype=object)}, r"train\.npz cannot be read"),
    ],
)
def test_mimic3_ihm_refuses_other_arrays(tmp_path, changed, message):
    stays(tmp_path, **changed)
    with pytest.raises(DataError, match=message):
        load("mimic3-ihm", tmp_path)


def test_mimic3_ihm_needs_both_arrays(tmp_path):
    stays(tmp_path)
    np.savez(tmp_path / "test.npz", X=np.zeros((2, 48, 76)))
    with pytest.raises(DataError, match=r"test\.npz has no array 'y'"):
        load("mimic3-ihm", tmp_path)


def test_standardise_uses_training_rows_and_keeps_small_columns():
    x = np.stack([DRAW.normal(3, 2, 50), 1e-21 * DRAW.normal(size=50), np.full(50, 0.1)], axis=1)
    train = np.arange(50) < 40
    scaled = standardise(x, train)
    assert scaled.dtype == np.float32
    assert scaled[train].mean(0) == pytest.approx([0, 0, 0], abs=1e-6)
    assert scaled[train].std(0) == pytest.approx([1, 1, 0], abs=1e-6)
    assert moments(x, train)[1][2] == 1


def test_groups_are_not_split():
    groups = np.repeat(list("abcdefghij"), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    test = split_groups(groups, 0.3, "a name")
    assert len(set(groups[test])) == 3
    assert not set(groups[test]) & set(groups[~test])


def test_some_of_the_rows():
    """So many training rows, test rows in proportion, the same ones every time."""
    whole = load("digits")
    few = whole.some(300)
    assert (~few.test).sum() == 300
    assert few.test.sum() == round(300 * whole.test.sum() / (~whole.test).sum())
    assert (np.diff(np.searchsorted(whole.ids, few.ids)) > 0).all()
    assert np.array_equal(few.ids, load("digits").some(300).ids)
    assert set(few.ids[~few.test]) < set(whole.some(400).ids[~whole.some(400).test])
    with pytest.raises(SettingError, match="take = 0"):
        whole.some(0)
