"""Early stopping: who stops when, what is kept, and that all engines agree."""

import pytest
import torch

from fedloom import (
    TDCD,
    Alone,
    Callback,
    Drawn,
    HyFEMAvg,
    Partition,
    Privacy,
    Run,
    Stop,
    Stopping,
    Task,
    load_dataset,
)
from fedloom.algorithms.verification.battery_cases import cases
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.registry import algorithms
from fedloom.data.federated import Federated
from fedloom.testing import sample_of

EVERY, ROUNDS = 2, 40
SETTINGS = {"local_steps": 5, "lr": 0.5, "batch": 40}


@pytest.fixture(scope="module")
def data():
    data = Partition(clients=[2, 3]).place(load_dataset("digits").some(300))
    return data.with_validation(0.25)


def run(data, algorithm=None, **options):
    task = Task.of(data, "mlp", hidden=[8])
    return Run(algorithm or TDCD(**SETTINGS), task, data, **{"seed": 1, **options})


@pytest.fixture(scope="module")
def curve(data):
    """Validation losses after every second round, and the models, of a run that does not stop."""
    plain, losses, models = run(data), {}, {}
    for done in range(EVERY, ROUNDS + 1, EVERY):
        losses[done] = plain.fit(done).loss("validation")
        models[done] = tree.copy(plain.algorithm.blocks(plain.fed, plain.state))
    return losses, models


def plain_rule(losses, patience, least=0.0):
    """(the last round, the best round), by the definition."""
    best = None
    for done in losses:
        if best is None or losses[done] < losses[best] - least:
            best, since = done, 0
        else:
            since += 1
        if since == patience:
            return done, best
    return done, best


@pytest.mark.parametrize(("patience", "least"), [(1, 0.0), (2, 0.0), (3, 0.0), (2, 0.2), (50, 0.0)])
def test_it_stops_and_keeps_what_the_definition_says(data, curve, patience, least):
    losses, models = curve
    stopped = run(data).fit(ROUNDS, every=EVERY, stop=Stopping(patience, least=least))
    last, best = plain_rule(losses, patience, least)
    assert (stopped.round, stopped.best.round) == (last, best)
    assert stopped.best.value == pytest.approx(losses[best], rel=1e-5)
    kept = stopped.algorithm.blocks(stopped.fed, stopped.model_state)
    assert tree.largest_difference(kept, models[best]) == 0.0
    assert stopped.loss("validation") == losses[best]
    assert [record.best for record in stopped.records][-1] == best
    assert stopped.trained().facts["rounds"] == best
    assert (stopped.halted is None) == (last == ROUNDS)


def test_the_test_shows_both_ends(curve):
    """Else what is above could hold for any rule."""
    losses, _ = curve
    ends = {plain_rule(losses, patience) for patience in (1, 2, 3, 50)}
    assert len(ends) > 2
    assert plain_rule(losses, 50)[0] == ROUNDS


def test_records_on_the_way_are_of_the_model_of_their_round(data, curve):
    losses, _ = curve
    stopped = run(data).fit(ROUNDS, every=EVERY, stop=Stopping(2))
    for record in stopped.records[1:]:
        assert record.validation["loss"] == losses[record.round]


def test_larger_metrics_are_better(data):
    stopped = run(data).fit(ROUNDS, every=EVERY, stop=Stopping(2, metric="accuracy"))
    values = {r.round: r.validation["accuracy"] for r in stopped.records[1:]}
    last, best = plain_rule({done: -value for done, value in values.items()}, 2)
    assert (stopped.round, stopped.best.round) == (last, best)
    assert stopped.best.value == values[best]
    kinds = {line.kind for line in stopped.ledger.lines()}
    assert "validation-labels" in kinds
    assert "validation-losses" not in kinds


def test_labels_stay_with_clients_where_the_loss_decides(data):
    stopped = run(data).fit(4, every=EVERY, stop=Stopping(2))
    kinds = {line.kind for line in stopped.ledger.lines()}
    assert {"validation-scores", "validation-losses", "validation"} <= kinds
    assert "validation-labels" not in kinds


def test_rows_that_are_kept_back_change_nothing_without_stopping(data):
    """The engine has them, and trains as if they were nowhere."""
    only = Federated(data.name, data.goal, data.train, data.test, data.classes)
    a, b = run(data).fit(3), run(only).fit(3)
    assert tree.largest_difference(*(r.algorithm.blocks(r.fed, r.state) for r in (a, b))) == 0.0
    assert list(a.ledger) == list(b.ledger)


def samples():
    for name in algorithms:
        for number, algorithm in enumerate(cases.of(algorithms[name]).examples):
            if not algorithm.personal and getattr(algorithm, "privacy", None) is None:
                yield pytest.param(algorithm, id=f"{name}-{number}")


def sample_data(algorithm):
    task, rows = sample_of(algorithm)
    return task, Federated("sample", "classes", rows).with_validation(0.25)


@pytest.mark.parametrize("algorithm", list(samples()))
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_engines_agree_for_every_algorithm(algorithm, metric):
    task, data = sample_data(algorithm)
    stop, runs = Stopping(1, metric=metric), []
    for engine, schedule in (("stacked", None), ("reference", None)):
        one = Run(algorithm, task, data, engine=engine, schedule=schedule, precision="float64")
        runs.append(one.fit(3, every=1, stop=stop))
    a, b = runs
    assert a.round == b.round
    assert a.best.round == b.best.round
    assert a.best.value == pytest.approx(b.best.value, rel=1e-9)
    states = [{n: r.fed.read(v) for n, v in r.state._asdict().items()} for r in runs]
    assert tree.largest_difference(*states) < 1e-9
    assert list(a.ledger) == list(b.ledger)
    assert a.best.value == pytest.approx(
        a.loss("validation") if metric == "loss" else a.evaluate("validation")["accuracy"]
    )


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_who_is_absent_is_left_out(engine):
    """Rows that a silo's absent client holds have no joint prediction in that round."""
    task, data = sample_data(TDCD())
    algorithm = TDCD(local_steps=2, lr=0.2, batch=12)
    options = {"schedule": Drawn(0.5, seed=1), "precision": "float64", "engine": engine}
    drawn = Run(algorithm, task, data, **options).fit(6, every=1, stop=Stopping(6))
    other = "reference" if engine == "stacked" else "stacked"
    same = Run(algorithm, task, data, **{**options, "engine": other})
    same.fit(6, every=1, stop=Stopping(6))
    assert drawn.best.round == same.best.round
    assert drawn.best.value == pytest.approx(same.best.value, rel=1e-9)
    assert drawn.best.value != pytest.approx(drawn.loss("validation"), rel=1e-3)


class Keeping(Callback):
    def __init__(self, at):
        self.at, self.snapshot = at, None

    def on_round(self, run):
        if run.round == self.at:
            self.snapshot = run.snapshot()


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_a_resumed_run_decides_as_a_straight_one(data, engine):
    stop = Stopping(2)
    straight = run(data, engine=engine).fit(ROUNDS, every=EVERY, stop=stop)
    kept = Keeping(straight.best.round + 1)
    run(data, engine=engine).fit(ROUNDS, every=EVERY, stop=stop, callbacks=[kept])
    again = run(data, engine=engine).stop_early(stop, EVERY, ROUNDS)
    again.restore(kept.snapshot).fit(ROUNDS)
    assert again.round == straight.round
    assert again.best == straight.best
    a, b = (r.algorithm.blocks(r.fed, r.model_state) for r in (again, straight))
    assert tree.largest_difference(a, b) == 0.0
    assert list(again.ledger) == list(straight.ledger)


def test_silos_that_train_alone_stop_together(data):
    alone = run(data, Alone(**SETTINGS)).fit(20, every=EVERY, stop=Stopping(2))
    values = {r.round: r.validation["loss"] for r in alone.records[1:]}
    last, best = plain_rule(values, 2)
    assert (alone.round, alone.best.round) == (last, best)


def test_a_loss_that_is_not_finite_is_no_best(data):
    wild = run(data, TDCD(local_steps=1, lr=3e38, batch=40))
    with pytest.raises(SettingError, match="nothing is trained"):
        wild.snapshot()
    try:
        wild.fit(3, every=1, stop=Stopping(3))
    except Exception as problem:
        assert "NaN or infinity" in str(problem)
    assert wild.best is None or torch.isfinite(torch.tensor(wild.best.value))


def test_fit_again_goes_on_with_it(data):
    going = run(data).fit(4, every=EVERY, stop=Stopping(2))
    more = going.fit(ROUNDS)
    straight = run(data).fit(ROUNDS, every=EVERY, stop=Stopping(2))
    assert (more.round, more.best) == (straight.round, straight.best)


class TestWhatCannotBe:
    def test_without_validation_rows(self):
        data = Partition(clients=2).place(load_dataset("iris"))
        fresh = run(data, TDCD(local_steps=1, batch=20))
        with pytest.raises(SettingError, match=r"no validation rows.*with_validation\(0.15\)"):
            fresh.fit(3, every=1, stop=Stopping())
        assert fresh.round == 0

    def test_an_unknown_metric(self, data):
        with pytest.raises(SettingError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
            run(data).fit(3, every=1, stop=Stopping(metric="acuracy"))
        with pytest.raises(SettingError, match="metric r2 is for number, not for the goal classes"):
            run(data).fit(3, every=1, stop=Stopping(metric="r2"))

    def test_with_privacy(self, data):
        private = TDCD(**SETTINGS, privacy=Privacy("noise-only", noise=0.1))
        with pytest.raises(SettingError, match="validation rows would leave clients without noise"):
            run(data, private).fit(3, every=1, stop=Stopping())

    def test_with_models_of_clients(self):
        task, data = sample_data(HyFEMAvg())
        with pytest.raises(SettingError, match="clients of HyFEMAvg have models of their own"):
            Run(cases.of(HyFEMAvg).examples[0], task, data).fit(3, every=1, stop=Stopping())

    @pytest.mark.parametrize("settings", [{"patience": 0}, {"least": -1}, {"metric": 3}])
    def test_settings(self, settings):
        with pytest.raises(SettingError):
            Stopping(**settings)


class Noting(Callback):
    def __init__(self, stop_at=None, at_record=None):
        self.seen, self.stop_at, self.at_record = [], stop_at, at_record

    def on_record(self, run, record):
        self.seen.append(("record", record.round))
        if record.round == self.at_record:
            raise Stop

    def on_round(self, run):
        self.seen.append(("round", run.round))
        if run.round == self.stop_at:
            raise Stop("enough")

    def on_end(self, run):
        self.seen.append(("end", run.round))


class TestCallbacks:
    def test_they_are_called_in_order(self, data):
        noting = Noting()
        run(data).fit(3, every=2, callbacks=[noting])
        words = "record 0,round 1,record 2,round 2,record 3,round 3,end 3"
        assert ",".join(f"{what} {at}" for what, at in noting.seen) == words

    @pytest.mark.parametrize("engine", ["stacked", "reference"])
    def test_stop_ends_after_the_round_and_the_run_can_go_on(self, data, engine):
        stopped = run(data, engine=engine).fit(9, every=3, callbacks=[Noting(stop_at=4)])
        assert (stopped.round, stopped.halted) == (4, "enough")
        straight = run(data, engine=engine).fit(6)
        stopped.fit(6)
        assert stopped.halted is None
        a, b = (r.algorithm.blocks(r.fed, r.state) for r in (stopped, straight))
        assert tree.largest_difference(a, b) == 0.0
        assert list(stopped.ledger) == list(straight.ledger)

    def test_stop_at_a_record_even_at_the_first(self, data):
        at_once = run(data).fit(9, every=3, callbacks=[Noting(at_record=0)])
        assert (at_once.round, at_once.halted) == (0, "a callback stopped it")
        assert at_once.fit(2).round == 2

    def test_what_is_no_callback_is_refused(self, data):
        with pytest.raises(SettingError, match="a Callback is expected"):
            run(data).fit(1, callbacks=[print])
