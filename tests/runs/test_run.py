"""A run: stopping, going on, and what was sent and who dropped out until then."""

import numpy as np
import pytest
import torch

from fedloom import TDCD, Alone, Drawn, Partition, Run, Task, linear, load_dataset, mlp, partition
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.rng import Secrets, Streams
from fedloom.testing import placement, task

ALGORITHM = TDCD(local_steps=2, lr=0.2, batch=12)
ENGINES = pytest.mark.parametrize("engine", ["stacked", "reference"])


def run(engine="stacked", **options):
    return Run(ALGORITHM, task(), placement(), engine=engine, precision="float64", **options)


@ENGINES
def test_going_back_books_nothing_twice(engine):
    trained = run(engine).fit(2)
    middle = trained.snapshot()
    straight = list(trained.fit(4).ledger)
    assert list(trained.restore(middle).fit(4).ledger) == straight
    assert [entry.round for entry in middle.ledger] == [0] * 5 + [1] * 5  # left alone


@ENGINES
def test_a_resumed_runs_record_replays(engine):
    schedule = Drawn(0.5, seed=1)
    stopped = run(engine, schedule=schedule).fit(2).snapshot()
    resumed = run(engine, schedule=schedule).restore(stopped).fit(4)
    again = run(engine, schedule=resumed.record).fit(4)
    a, b = (ALGORITHM.blocks(r.fed, r.state) for r in (resumed, again))
    assert tree.largest_difference(a, b) == 0.0


@ENGINES
def test_after_an_interruption_in_mid_round_it_goes_on_cleanly(engine, monkeypatch):
    straight = run(engine).fit(3)
    trained = run(engine).fit(1)
    real = trained.fed.exchange

    def interrupted(*args):
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(trained.fed, "exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained.fit(3)
    assert trained.round == 1
    trained.fit(3)
    assert list(trained.ledger) == list(straight.ledger)
    a, b = (ALGORITHM.blocks(r.fed, r.state) for r in (trained, straight))
    assert tree.largest_difference(a, b) == 0.0


def test_a_snapshot_of_another_model_is_refused():
    rows = partition({"a": torch.randn(10, 3)}, torch.ones(10), {"a": 2})
    saved = Run(TDCD(batch=5), Task({"a": linear(3)}, "squared"), rows).fit(1).snapshot()
    other = Run(TDCD(batch=5), Task({"a": mlp(3, [4], 1)}, "squared"), rows)
    with pytest.raises(SettingError, match="the snapshot's theta is not that of this"):
        other.restore(saved)


def test_a_snapshot_goes_into_any_engine_and_precision():
    saved = run("stacked").fit(2).snapshot()
    found = [
        Run(ALGORITHM, task(), placement(), engine=engine, precision=precision)
        .restore(saved)
        .fit(3)
        .predict()
        .double()
        for engine in ("stacked", "reference")
        for precision in ("float64", "float32")
    ]
    for other in found[1:]:
        assert torch.allclose(found[0], other, atol=1e-4)


def test_sums_over_many_clients_in_single_precision():
    """K = 400 with nothing to learn: the mean of equal blocks is that block, whatever the chunk."""
    x = {"a": torch.zeros(400, 3)}
    rows, once = partition(x, torch.zeros(400), {"a": 400}), TDCD(batch=None, local_steps=1)
    for options in ({"chunk": 1}, {"chunk": 7}, {}, {"engine": "reference"}):
        trained = Run(once, Task({"a": linear(3, bias=False)}, "squared"), rows, **options)
        before = trained.fed.parts.value["a"].initial(trained.fed.streams).block["weight"]
        trained.fit(2)
        assert torch.equal(trained.export("a").weight, before)


def test_placing_many_clients_is_work_in_proportion(interpreted):
    def place(clients):
        partition({"a": torch.zeros(clients, 1)}, torch.zeros(clients), {"a": clients})

    assert interpreted(lambda: place(2000)) < 5 * interpreted(lambda: place(500))


def test_lone_silos_that_are_combined_predict_once():
    for combined, hubs in ((True, 1), (False, 3)):
        trained = Run(Alone(batch=9, combined=combined), task(), placement()).fit(1)
        assert len(trained._viewer.scores(trained.placement)) == hubs


def test_streams():
    """Common ones depend on seed and name, own ones on the party and its secret, if it has one."""
    a, b = Streams(1), Streams(1, Secrets("run", {"ash": b"mine"}))
    same = [s.common("x", 3).sample(100, 5).tolist() for s in (a, b)]
    assert same[0] == same[1]
    assert a.own("ash", "x").uniform(3).tolist() != b.own("ash", "x").uniform(3).tolist()
    assert a.own("ash").uniform(3).tolist() != a.own("birch").uniform(3).tolist()
    empty = Streams(1, Secrets("run", {"ash": b""}))
    assert empty.own("ash").uniform(1) != a.own("ash").uniform(1)


def test_streams_stay_as_they_are():
    """Two parties with different versions of everything must draw the same rows."""
    stream = Streams(2024).common("minibatch", 7, 0)
    assert stream.sample(1000, 6).tolist() == [826, 560, 310, 669, 388, 853]
    assert Streams(2024).common("p").permutation(6).tolist() == [3, 5, 2, 4, 1, 0]
    assert Streams(2024).common("most").sample(8, 6).tolist() == [2, 5, 6, 0, 1, 4]
    assert Streams(2024).common("u").uniform(2).tolist() == [
        0.3314167662764025,
        0.48773874567490394,
    ]
    found = Streams(2024).common("f").uniform_for(("a", "b")).tolist()
    assert found == [0.3590538864406422, 0.07482769217461682]
    assert Streams(2024).common("t").seed() == 7714899760154127797


# Which rows are predicted and judged


@pytest.fixture(scope="module")
def iris():
    data = Partition(silos=["left", "right"], clients=[2, 3]).place(load_dataset("iris"))
    return data, Run(TDCD(local_steps=2, batch=20), Task.of(data, "linear"), data).fit(2)


def right(scores, labels):
    return pytest.approx(float((scores.argmax(1) == labels).double().mean()))


def test_predict_and_evaluate_take_the_same_rows(iris):
    data, trained = iris
    for rows, placed in (
        ((), data.test),
        (("test",), data.test),
        (("train",), data.train),
        ((data.train,), data.train),
    ):
        scores = trained.predict(*rows)
        assert torch.equal(scores, trained.predict(placed))
        assert trained.evaluate(*rows)["accuracy"] == right(scores, placed.labels())
    assert trained.loss() == trained.loss("train") == trained.loss(data.train)
    assert trained.loss("test") == trained.loss(data.test) != trained.loss()


def test_all_rows_and_some_of_them_are_in_the_order_of_their_ids(iris):
    data, trained = iris
    scores, whole = trained.predict("all"), data.train.joined(data.test)
    assert whole.ids.tolist() == sorted([*data.train.ids.tolist(), *data.test.ids.tolist()])
    of = dict(zip(whole.ids.tolist(), scores, strict=True))
    assert torch.equal(torch.stack([of[one] for one in data.test.ids.tolist()]), trained.predict())
    assert trained.evaluate("all")["accuracy"] == right(scores, whole.labels())
    numbers = [40, 3, 77]
    for rows in (numbers, torch.tensor(numbers), np.array(numbers), np.isin(range(150), numbers)):
        assert torch.equal(trained.predict(rows), scores[sorted(numbers)])
    assert trained.evaluate(numbers)["accuracy"] == right(
        scores[sorted(numbers)], whole.labels()[sorted(numbers)]
    )
    assert torch.equal(trained.predict("all", at_a_time=7), scores)


def test_a_placement_alone_has_no_test_rows():
    trained = run().fit(1)
    assert torch.equal(trained.predict(), trained.predict("train"))
    assert torch.equal(trained.predict("all"), trained.predict())
    for asked in (trained.evaluate, lambda: trained.predict("test"), lambda: trained.loss("test")):
        with pytest.raises(SettingError, match=r"there are no test rows: choose others \(rows='tr"):
            asked()
    assert trained.evaluate("train")["accuracy"] > 0


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (
            "tests",
            'rows: .test., .train., .validation., .all., a placement or numbers of .* not "tests"',
        ),
        (7, "a placement or numbers of rows are expected, not 7"),
        ([0.5], "numbers of rows are expected, not a list"),
        ([1, 1], "a number is there twice"),
        ([150], "numbers from 0 to 149"),
        ([-1], "numbers from 0 to 149"),
        ([], "no rows are chosen"),
        ([[1]], "numbers of rows are expected"),
    ],
)
def test_rows_that_cannot_be_chosen(iris, rows, error):
    for asked in (iris[1].predict, iris[1].evaluate, iris[1].loss):
        with pytest.raises(SettingError, match=error):
            asked(rows)


def test_a_run_shows_its_last_loss_and_of_which_round():
    trained = run()
    assert repr(trained) == "<Run of TDCD, 3 silos, round 0>"
    trained.fit(2, every=2)
    last = f"{trained.records[-1].train_loss:.4g}"
    assert repr(trained) == f"<Run of TDCD, 3 silos, round 2, loss {last} (round 2)>"
    trained.fit(5)
    assert repr(trained) == f"<Run of TDCD, 3 silos, round 5, loss {last} (round 2)>"
