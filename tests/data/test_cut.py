"""Partitioners: every row and every column exactly once, the same from the same seed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_selection import f_classif

import fedloom.data.datasets  # noqa: F401
from fedloom.core.errors import DataError, SettingError
from fedloom.core.registry import horizontal_partitioners, vertical_partitioners
from fedloom.data.catalog import load
from fedloom.data.dataset import Dataset
from fedloom.data.partition.arrays import partition
from fedloom.data.partition.horizontal import _groups
from fedloom.data.partition.partition import Cut, Partition, place
from fedloom.data.partition.vertical import Region, columns

CUTS_COLUMNS = ["contiguous", "random", "correlated", "importance"]


def table(rows=40, widths=(7,), goal="classes", seed=0):
    """Flat blocks b0, b1, ... of numbers that tell row and column."""
    draw = np.random.default_rng(seed)
    starts = np.cumsum([0, *widths])
    blocks = {
        f"b{k}": torch.arange(rows * width).reshape(rows, width) + 10_000.0 * k
        for k, width in enumerate(widths)
    }
    y = draw.normal(size=rows) if goal == "number" else draw.integers(0, 3, rows)
    return Dataset(
        name="table",
        ids=draw.permutation(rows) + 100,
        blocks=blocks,
        y=torch.tensor(y),
        test=draw.random(rows) < 0.25,
        goal=goal,
        columns={
            f"b{k}": tuple(f"c{starts[k] + i}" for i in range(width))
            for k, width in enumerate(widths)
        },
        classes=("x", "y", "z") if goal == "classes" else (),
        keys={"site": np.array(["north", "south", "west"])[draw.integers(0, 3, rows)]},
    )


def pictures(blocks=1, height=5, width=7, rows=12):
    x = torch.arange(rows * height * width).reshape(rows, 1, height, width) / 1.0
    return Dataset(
        name="pictures",
        ids=np.arange(rows),
        blocks={f"view{k}": x + 1000 * k for k in range(blocks)},
        y=torch.arange(rows) % 2,
        test=np.arange(rows) >= rows - 3,
        goal="binary",
    )


def series(rows=10):
    return replace(
        pictures(rows=rows), blocks={"series": torch.randn(rows, 4, 6)}, test=np.arange(rows) > 7
    )


@st.composite
def cuts(draw, horizontal=("random", "sizes", "dirichlet", "key")):
    """A table of 1-3 blocks and a partition of it, of any kind."""
    widths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    goal = draw(st.sampled_from(["classes", "number"]))
    data = table(draw(st.integers(8, 50)), widths, goal, draw(st.integers(0, 99)))
    if not draw(st.integers(0, 3)):
        data = replace(data, test=np.zeros_like(data.test))
    silos = draw(st.integers(1, min(4, sum(widths))))
    how = draw(st.sampled_from([*CUTS_COLUMNS, *(["views"] if silos <= len(widths) else [])]))
    rows = draw(st.sampled_from(horizontal))
    shares = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)
    mirrored = draw(st.booleans())
    clients = draw(st.lists(st.integers(1, 6), min_size=silos, max_size=silos))
    return data, Partition(
        silos=silos,
        vertical=how,
        horizontal=rows,
        clients=3 if rows in ("sizes", "key") else clients[0] if mirrored else clients,
        sizes=draw(shares) if rows == "sizes" else None,
        alpha=draw(st.sampled_from([0.01, 0.5, 100.0])),
        key="site" if rows == "key" else None,
        mirrored=mirrored,
        seed=draw(st.integers(0, 2**32)),
    )


@settings(deadline=None, max_examples=60)
@given(cuts())
def test_every_row_and_every_column_once(example):
    data, wanted = example
    cut = wanted.cut(data)
    placed = place(data, cut)
    names = [name for silo in cut.silos for name in placed.columns[silo]]
    assert sorted(names) == sorted(name for named in data.columns.values() for name in named)
    for side, rows in ((placed.train, data.rows(~data.test)), (placed.test, data.rows(data.test))):
        if not rows.size:
            assert side is None
            continue
        order = np.argsort(rows.ids)
        whole = torch.cat(list(rows.blocks.values()), 1)[torch.from_numpy(order)]
        for silo in cut.silos:
            assert np.array_equal(side.ids, rows.ids[order])
            where = [int(name[1:]) for name in placed.columns[silo]]
            assert torch.equal(side.x[silo], whole[:, where])
            assert torch.equal(side.y[silo], rows.y[torch.from_numpy(order)])
            assert sum(map(len, side.held(silo).values())) == rows.size


@settings(deadline=None, max_examples=40)
@given(cuts())
def test_a_cut_is_drawn_and_read_back_the_same(example):
    data, wanted = example
    cut = wanted.cut(data)
    assert wanted.cut(data) == cut
    again = Cut.from_json(json.loads(json.dumps(cut.to_json())))
    assert again == cut
    first, second = place(data, cut), place(data, again)
    for silo in cut.silos:
        assert torch.equal(first.train.x[silo], second.train.x[silo])
        assert torch.equal(first.train.owner[silo], second.train.owner[silo])
    if wanted.mirrored:
        owners = [owner.tolist() for owner in cut.owner.values()]
        assert owners == owners[:1] * len(owners)


@settings(deadline=None, max_examples=40)
@given(cuts(["random", "sizes"]))
def test_sizes_are_in_proportion(example):
    data, wanted = example
    cut = wanted.cut(data)
    for silo, owner in cut.owner.items():
        count = len(cut.clients[silo])
        shares = np.array(wanted.sizes or [1] * count) / sum(wanted.sizes or [1] * count)
        for rows in (owner[data.test], owner[~data.test]):
            counts = np.bincount(rows, minlength=count)
            assert (np.abs(counts - shares * len(rows)) <= 1).all()


def test_the_first_silos_get_one_more():
    assert {s: p["b0"] for s, p in Partition(silos=3).cut(table()).parts.items()} == {
        "a": (0, 1, 2),
        "b": (3, 4),
        "c": (5, 6),
    }


def test_silos_place_rows_apart_and_seeds_differ():
    cut = Partition(seed=1).cut(load("digits"))
    assert (cut.owner["a"] != cut.owner["b"]).any()
    assert cut != Partition(seed=2).cut(load("digits"))


def test_rows_fall_where_they_fell():
    """The same in every version: training rows, and test rows (1, 2 and 13)."""
    cut = Partition(clients=3, seed=5).cut(table(16))
    assert cut.owner["a"].tolist() == [0, 1, 2, 2, 0, 1, 0, 1, 2, 2, 0, 1, 2, 0, 1, 1]
    assert cut.owner["b"].tolist() == [1, 1, 2, 0, 2, 1, 0, 2, 1, 1, 1, 2, 0, 0, 0, 2]


def test_training_rows_fall_as_in_partition():
    data = load("digits")
    train = data.rows(~data.test)
    left, right = train.blocks["pixels"].split(4, 3)
    old = partition({"a": left, "b": right}, train.y, {"a": 3, "b": 5}, ids=train.ids, seed=7)
    new = place(data, Partition(clients=[3, 5], seed=7).cut(data)).train
    for silo in "ab":
        assert torch.equal(old.x[silo], new.x[silo])
        assert torch.equal(old.owner[silo], new.owner[silo])


def test_what_is_cut_without_being_told():
    assert list(Partition().cut(table(widths=(3, 4))).parts) == ["b0", "b1"]
    assert Partition().cut(pictures()).parts == {
        "a": {"view0": Region(0, 5, 0, 4)},
        "b": {"view0": Region(0, 5, 4, 7)},
    }
    assert Partition().cut(series()).parts["b"] == {"series": (3, 4, 5)}
    many = Partition(silos=30).cut(table(widths=(30,))).silos
    assert many[:2] + many[25:28] == ("a", "b", "z", "aa", "ab")


def test_views_are_stacked():
    data = pictures(blocks=12)
    placed = place(data, Partition(silos=4).cut(data))
    assert placed.train.x["b"].shape == (9, 3, 5, 7)
    assert torch.equal(placed.train.x["b"][:, 2], data.blocks["view5"][:9, 0])
    chosen = Partition(vertical="views", columns={"p": ["view3", "view1"], "q": ["view2"]})
    placed = place(data, chosen.cut(data))
    assert torch.equal(placed.train.x["p"][:, 1], data.blocks["view1"][:9, 0])


def test_patches_tile_the_image():
    data = pictures()
    placed = place(data, Partition(grid=[2, 3]).cut(data))
    x = list(placed.train.x.values())
    whole = torch.cat([torch.cat(x[:3], 3), torch.cat(x[3:], 3)], 2)
    assert torch.equal(whole, data.blocks["view0"][:9])


def test_columns_of_images_are_pixels_and_those_of_sequences_features():
    data = pictures()
    placed = place(data, Partition(silos=3, vertical="random").cut(data))
    pixels = torch.cat(list(placed.train.x.values()), 1).sort(1).values
    assert torch.equal(pixels, data.blocks["view0"][:9].flatten(1))
    assert placed.columns == {}
    for how in CUTS_COLUMNS:
        placed = place(series(), Partition(silos=2, vertical=how).cut(series()))
        assert placed.train.x["a"].shape == (8, 4, 3)


def test_columns_by_name_and_number():
    data = table(widths=(3, 4))
    placed = place(data, Partition(columns={"p": ["c5", 0], "q": ["c1"]}, labels_at="q").cut(data))
    assert placed.columns == {"p": ("c5", "c0"), "q": ("c1",)}
    assert placed.train.y["p"] is None
    assert placed.train.y["q"] is not None
    lists = {"p": ["c5"], "q": ["c1"], "r": ["c0"]}
    cut = Partition(columns=lists, labels_at=["r", "p"]).cut(data)
    assert cut.labels_at == ("p", "r")  # in the silos' order


def test_correlated_columns_sit_together():
    draw = np.random.default_rng(0)
    group = draw.permutation(np.repeat([0, 1, 2], 4))
    hidden = draw.normal(size=(200, 3))
    sign = draw.choice([-1, 1], 12)
    x = sign * hidden[:, group] + 0.5 * draw.normal(size=(200, 12))
    data = replace(table(200, (12,)), blocks={"b0": torch.tensor(x)})
    for parts in Partition(silos=3, vertical="correlated").cut(data).parts.values():
        assert len(set(group[list(parts["b0"])])) == 1


@pytest.mark.parametrize("goal", ["classes", "number"])
def test_the_first_silo_has_the_columns_that_matter(goal):
    data = table(300, (8,), goal)
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0)).double()
    x[:, [2, 5]] += 2 * (data.y[:, None] == 1) if goal == "classes" else data.y[:, None]
    x[:, 7] = 0.1  # constant, though its mean is off by a rounding
    data = replace(data, blocks={"b0": x})
    parts = Partition(silos=4, vertical="importance").cut(data).parts
    assert parts["a"] == {"b0": (2, 5)}
    assert 7 in parts["d"]["b0"]


def test_importance_is_the_variance_between_classes():
    """The order of scikit-learn's F values, where classes are of very different sizes: some
    columns tell a small one from the rest, some the two large ones apart."""
    draw = np.random.default_rng(5)
    y = np.repeat([0, 1, 2], [150, 120, 30])
    apart = np.array([[0, 0, 3.0], [0, 0, 2.0], [0, 0, 1.5], [0, 1, 0], [0, 0.8, 0], [0, 0.6, 0]])
    x = draw.normal(size=(300, 6)) + apart.T[y]
    data = replace(table(300, (6,)), blocks={"b0": torch.tensor(x)}, y=torch.tensor(y))
    train = ~data.test
    wanted = np.argsort(-f_classif(x[train], y[train])[0])
    parts = Partition(silos=6, vertical="importance").cut(data).parts
    assert [numbers for part in parts.values() for numbers in part["b0"]] == wanted.tolist()


def test_labels_and_rows_for_testing_are_not_looked_at():
    data = load("breast-cancer")
    train, test = (torch.from_numpy(side) for side in (~data.test, data.test))
    x, y = data.blocks["features"].clone(), data.y.clone()
    x[test], y[test] = 1e6, 1 - y[test]
    unlabelled = replace(data, y=y.index_put((train,), torch.arange(int(train.sum())) % 2))
    for how in ("correlated", "importance"):
        wanted = Partition(silos=4, vertical=how)
        assert wanted.cut(data) == wanted.cut(replace(data, blocks={"features": x}, y=y))
        by_labels = how == "importance"
        assert (wanted.cut(data) == wanted.cut(unlabelled)) != by_labels


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_a_small_alpha_skews(name):
    """Total variation between a client's labels and everyone's, averaged over rows."""
    data = load(name)
    y = data.y.numpy()
    if name == "diabetes":
        y = np.searchsorted(np.quantile(y, np.linspace(0, 1, 11)[1:-1]), y)

    def skew(alpha):
        owner = Partition(clients=5, horizontal="dirichlet", alpha=alpha).cut(data).owner["a"]
        everyone = np.bincount(y, minlength=10) / len(y)
        counts = [np.bincount(y[owner == k], minlength=10) for k in range(5)]
        return sum(np.abs(h - everyone * h.sum()).sum() for h in counts) / (2 * len(y))

    skews = [skew(alpha) for alpha in (0.02, 0.5, 10, 1000)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.5
    assert skews[-1] < 0.1


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_test_rows_have_the_shares_of_the_training_rows(name):
    """Of each class (or tenth of the labels), at each client; and they decide nothing."""
    data = load(name)
    wanted = Partition(clients=3, horizontal="dirichlet", alpha=0.5)
    owner, group = wanted.cut(data).owner["a"], _groups(data)
    for label in range(10):
        sides = [owner[(group == label) & side] for side in (~data.test, data.test)]
        train, test = (np.bincount(owners, minlength=3) / len(owners) for owners in sides)
        assert np.abs(train - test).max() <= sum(1 / len(owners) for owners in sides)
    if name == "diabetes":
        y = data.y.clone()
        y[torch.from_numpy(data.test)] = 1e6
        again = wanted.cut(replace(data, y=y)).owner["a"]
        assert np.array_equal(again[~data.test], owner[~data.test])


def test_clients_by_key():
    data = table()
    cut = Partition(horizontal="key", key="site").cut(data)
    assert cut.clients["a"] == ("north", "south", "west")
    assert np.array_equal(np.array(cut.clients["a"])[cut.owner["a"]], data.keys["site"])
    numbers = replace(data, keys={"site": np.arange(40) % 11})
    names = Partition(horizontal="key", key="site").cut(numbers).clients["a"]
    assert names == tuple(map(str, range(11)))


WRONG = [
    ({"vertical": "contigous"}, "did you mean 'contiguous'"),
    ({"horizontal": "dirichet"}, "did you mean 'dirichlet'"),
    ({"columns": {"p": ["c0"]}, "vertical": "random"}, "columns are for"),
    ({"grid": [1, 2], "vertical": "halves"}, "grid is for"),
    ({"sizes": [1, 2]}, "sizes is for"),
    ({"key": "site"}, "key is for"),
    ({"horizontal": "sizes"}, "needs sizes"),
    ({"horizontal": "key"}, "needs key"),
    ({"vertical": "columns"}, "needs columns"),
    ({"vertical": "grid"}, "needs grid"),
    ({"horizontal": "key", "key": "sit"}, "did you mean 'site'"),
    ({"horizontal": "key", "key": "site", "clients": 5}, "makes"),
    ({"horizontal": "sizes", "sizes": [1, 2], "clients": 4}, "makes"),
    ({"horizontal": "sizes", "sizes": [0, 0]}, "cannot be cut by"),
    ({"horizontal": "sizes", "sizes": {"a": [1]}}, "nothing for silo 'b'"),
    ({"horizontal": "dirichlet", "alpha": 0.0}, "alpha must be above 0"),
    ({"columns": {"p": ["c9"]}}, "no column 'c9'"),
    ({"columns": {"p": [7]}}, "numbered 0 to 6"),
    ({"columns": {"p": ["c1", 1]}}, "listed twice"),
    ({"columns": {"p": []}}, "gets none"),
    ({"columns": {"p": ["c1"]}, "silos": 2}, "columns are given for 1"),
    ({"columns": {"p": ["c1"]}, "silos": ["p", "q"]}, "nothing for silo 'q'"),
    ({"columns": {"p": ["b7"]}, "vertical": "views"}, "no block 'b7'"),
    ({"vertical": "views", "silos": 2}, "too few for 2 silos"),
    ({"vertical": "halves"}, "cuts images"),
    ({"silos": 8}, "7 columns cannot be cut for 8 silos"),
    ({"silos": 0}, "silos must be at least 1"),
    ({"silos": ["p", "p"]}, "no name twice"),
    ({"clients": [1, 2, 3]}, "3 numbers for 2 silos"),
    ({"clients": {"a": 1, "c": 2}}, "clients: 'c'"),
    ({"clients": 0}, "clients must be at least 1"),
    ({"clients": [2, 3], "mirrored": True}, "as many clients"),
    ({"labels_at": "c"}, "labels_at: 'c'"),
    ({"labels_at": []}, "at least one silo"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=lambda value: str(value)[:50])
def test_wrong_settings(wrong, said):
    with pytest.raises(SettingError, match=said):
        Partition(**wrong).cut(table())


def test_wrong_settings_for_images_and_mixtures():
    with pytest.raises(SettingError, match="5 x 7 pixels cannot be cut in 6 x 1"):
        Partition(grid=[6, 1]).cut(pictures())
    with pytest.raises(SettingError, match="6 cells, for 4 silos"):
        Partition(grid=[2, 3], silos=4).cut(pictures())
    mixed = replace(pictures(), blocks={**pictures().blocks, "table": torch.ones(12, 3)})
    assert Partition().cut(mixed).silos == ("view0", "table")
    with pytest.raises(SettingError, match="cannot be joined"):
        Partition(silos=1).cut(mixed)
    with pytest.raises(DataError, match="no training rows"):
        Partition().cut(replace(pictures(), test=np.ones(12, dtype=bool)))


def test_real_sets(real):
    modelnet = real("modelnet10")
    placed = place(modelnet, Partition(silos=4, clients=2).cut(modelnet))
    assert placed.train.x["d"].shape[1:] == (3, 32, 32)
    credit = real("credit-default")
    cut = Partition(vertical="correlated", silos=3).cut(credit)
    assert [sum(map(len, parts.values())) for parts in cut.parts.values()] == [8, 8, 7]
    assert len(columns(credit)) == 23


def test_the_page_names_every_way_to_cut():
    page = (Path(__file__).parents[2] / "docs/partitions.md").read_text()
    for choice in (*vertical_partitioners, *horizontal_partitioners):
        assert f"| `{choice}` |" in page
