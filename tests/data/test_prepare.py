"""Preparation: fitted from clients' summaries as if from pooled rows; saved and used again."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.core.errors import DataError
from fedloom.data.tables.columns import TextColumn, as_column, as_text
from fedloom.data.tables.prepare import CategorySummary, NumberSummary, Preparation, Summary, fit

NUMBER = st.one_of(st.none(), st.floats(-1e6, 1e6, width=32))
JOB = st.one_of(st.none(), st.sampled_from(["baker", "clerk", "pilot"]))
CLIENTS = st.lists(st.lists(st.tuples(NUMBER, JOB), max_size=12), min_size=1, max_size=5)


def table(rows):
    """Rows of (age, job) as a client's table."""
    ages = np.array([np.nan if age is None else age for age, _ in rows], dtype=np.float64)
    names = ("baker", "clerk", "pilot")
    jobs = [-1 if job is None else names.index(job) for _, job in rows]
    return {"age": ages, "job": TextColumn(names, np.array(jobs, dtype=np.int64))}


def summed(clients):
    total, *others = [Summary.of(table(rows)) for rows in clients]
    for other in others:
        total = total + other
    return total


def made(values, **options):
    """The preparation of a single column x, and the notes."""
    prepared, notes = fit("bank", Summary.of({"x": as_column(values)}), **options)
    return Preparation({"bank": prepared}, "binary", ("no", "yes")), notes


@given(CLIENTS)
def test_fitting_from_summaries_is_fitting_on_pooled_rows(clients):
    pooled = [row for rows in clients for row in rows]
    apart, notes = fit("bank", summed(clients))
    together, said = fit("bank", Summary.of(table(pooled)))
    assert apart.columns == together.columns
    assert notes == said
    size = max([abs(age) for age, _ in pooled if age is not None], default=0)
    for a, b in zip(apart.steps, together.steps, strict=True):
        if a.name == "job":
            assert a == b
        else:
            assert a.mean == pytest.approx(b.mean, rel=1e-9, abs=1e-9 * size)
            assert a.std == pytest.approx(b.std, rel=1e-9, abs=1e-9 * size)


@given(CLIENTS, st.integers(0, 5))
def test_an_empty_client_changes_nothing(clients, place):
    more = [*clients[:place], [], *clients[place:]]
    assert summed(more).columns["age"] == summed(clients).columns["age"]
    assert fit("bank", summed(more)) == fit("bank", summed(clients))


def test_moments_are_those_of_numpy_even_far_from_zero():
    values = 1e9 + np.random.default_rng(0).normal(size=3000)
    parts = [NumberSummary.of(part) for part in np.split(values, [5, 5, 1000])]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    assert total.count == 3000
    assert total.mean == pytest.approx(values.mean(), rel=1e-15)
    assert (total.spread / total.count) ** 0.5 == pytest.approx(values.std(), rel=1e-9)


def test_numbers_are_scaled_and_missing_ones_are_the_mean():
    prepared, notes = made([1.0, 3.0, None])
    assert prepared["bank"].columns == ("x", "x is missing")
    assert prepared.apply("bank", {"x": [1.0, None, 5.0], "y": ["extra", "", ""]}).tolist() == [
        [-1.0, 0.0],
        [0.0, 1.0],
        [3.0, 0.0],
    ]
    assert prepared.apply("bank", {"x": [1]}).dtype == torch.float32
    assert notes == []
    whole, _ = made([1, 3])
    assert whole["bank"].columns == ("x",)
    assert whole.apply("bank", {"x": [np.nan]}).tolist() == [[0.0]]


def test_text_is_one_hot():
    prepared, _ = made(["b", "a", None, " b "])
    assert prepared["bank"].columns == ("x = a", "x = b", "x is missing")
    rows = prepared.apply("bank", {"x": ["a", "b", None, "never seen"]})
    assert rows.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert prepared.apply("bank", {"x": [None]}).tolist() == [[0, 0, 1]]


def test_categories_that_are_numbers_have_no_point():
    assert as_text(np.array([3.0, np.nan, 0.5])).names == ("0.5", "3")


def test_rare_categories_are_lumped():
    prepared, _ = made(["a", "a", "b", "c"], rare=2)
    assert prepared["bank"].columns == ("x = a", "x is other")
    rows = prepared.apply("bank", {"x": ["a", "b", "never seen", None]})
    assert rows.tolist() == [[1, 0], [0, 1], [0, 1], [0, 0]]
    missing, _ = made(["a", "a", "b", None], rare=2)
    assert missing["bank"].columns == ("x = a", "x is other", "x is missing")
    rows = missing.apply("bank", {"x": ["b", None, "a"]})
    assert rows.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert '"c"' not in prepared.to_json()


@pytest.mark.parametrize(
    ("values", "columns", "note"),
    [
        ([0.1, 0.1, 0.1], (), "column 'x' dropped: it has one value only"),
        (["a", "a"], (), "column 'x' dropped: it has one value only"),
        ([None, None], (), "column 'x' dropped: it is empty"),
        ([7, None], ("x is missing",), "column 'x' dropped: it has one value only"),
        ([True, False], ("x",), None),
    ],
)
def test_columns_without_news_are_dropped_and_said(values, columns, note):
    prepared, notes = made(values)
    assert prepared["bank"].columns == columns
    assert (note in notes[0]) if note else not notes


def test_text_that_is_nowhere_is_no_column():
    fitted, notes = fit("bank", Summary({"x": CategorySummary({}, missing=3)}))
    assert fitted.steps == ()
    assert "column 'x' dropped: it is empty" in notes[0]


def test_a_constant_is_constant_at_every_client():
    clients = [[(0.1, "baker")] * size for size in (1, 3, 7)]
    prepared, notes = fit("bank", summed(clients))
    assert prepared.steps == ()
    assert len(notes) == 2


def test_tiny_numbers_are_not_a_constant():
    prepared, _ = made([1e-20, 2e-20])
    assert prepared.apply("bank", {"x": [1e-20, 2e-20]}).tolist() == [[-1.0], [1.0]]


def test_free_text_is_refused():
    with pytest.raises(DataError, match=r"silo bank, column 'x': 101 categories .* `drop`"):
        made([f"text {k}" for k in range(101)])
    made([f"text {k}" for k in range(100)])


def test_numbers_that_cannot_be_squared_are_refused():
    with pytest.raises(DataError, match="column 'x': numbers are too large to scale"):
        made([1e200, -1e200])


def test_it_is_saved_to_the_bit():
    for values in ([0.1, 1 / 3, None], ["ä", "b", None]):
        prepared, _ = made(values)
        again = Preparation.from_json(prepared.to_json())
        assert again == prepared
        assert torch.equal(
            again.apply("bank", {"x": values}), prepared.apply("bank", {"x": values})
        )


@pytest.mark.parametrize("text", ["", "{}", "[]", "{", '{"format": "fedloom preparation 1"}', "3"])
def test_what_is_not_a_preparation_is_refused(text):
    with pytest.raises(DataError, match="not a saved preparation"):
        Preparation.from_json(text)


def test_a_preparation_of_another_format_is_refused():
    saved = json.loads(made([1, 2])[0].to_json())
    with pytest.raises(DataError, match="another format"):
        Preparation.from_json(json.dumps({**saved, "format": "fedloom preparation 2"}))


@pytest.mark.parametrize(
    ("silo", "rows", "message"),
    [
        ("bnak", {"x": [1]}, "no preparation for silo 'bnak'; did you mean 'bank'"),
        ("bank", {"X1": [1]}, "silo bank lacks 'x', which the model was trained with"),
        ("bank", {"x": ["1", "secret"]}, "1 of 2 cells are not numbers .the first in row 2"),
        ("bank", {"x": [1, np.inf]}, "silo bank, column 'x': 1 cells are infinite"),
    ],
)
def test_rows_that_do_not_fit(silo, rows, message):
    prepared, _ = made([1, 2])
    with pytest.raises(DataError, match=message) as problem:
        prepared.apply(silo, rows)
    assert "secret" not in str(problem.value)


def test_summaries_of_different_tables_do_not_add_up():
    first, other = Summary.of({"x": as_column([1.0])}), Summary.of({"x": as_column(["a"])})
    with pytest.raises(DataError, match="column 'x' is text at one client and numbers at another"):
        first + other
    with pytest.raises(DataError, match="different columns"):
        first + Summary.of({"y": as_column([1.0])})
