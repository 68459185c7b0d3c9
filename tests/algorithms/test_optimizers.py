"""Local optimisers and hubs' steps against torch.optim: the same iterates in double precision."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import (
    SGD,
    TDCD,
    Adam,
    AdamW,
    Central,
    FedAvg,
    FedBCD,
    HubAdam,
    HyFEMAvg,
    Privacy,
    Relaxed,
    Run,
    SplitNN,
    SplitNNU,
    Task,
    TDCDPrivateLabels,
    mlp,
    partition,
)
from fedloom.algorithms.shared.hub_steps import stepped
from fedloom.algorithms.shared.optimizers import optimizer_of, trained_part
from fedloom.core import errors, tree
from fedloom.models.task import Theta
from fedloom.testing import placement, sample_of, task

TOLERANCE = 1e-12
ROWS, COLUMNS, CLASSES, STEPS = 30, 4, 3, 12
PAIRS = {  # of ours, and torch's
    "momentum": (SGD(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    "dampened": (
        SGD(momentum=0.8, dampening=0.3),
        torch.optim.SGD,
        {"momentum": 0.8, "dampening": 0.3},
    ),
    "nesterov": (
        SGD(momentum=0.7, nesterov=True, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1},
    ),
    "decay": (SGD(weight_decay=0.2), torch.optim.SGD, {"weight_decay": 0.2}),
    "adam": (Adam(), torch.optim.Adam, {}),
    "adam with decay": (
        Adam(betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
        torch.optim.Adam,
        {"betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1},
    ),
    "adamw": (AdamW(weight_decay=0.3), torch.optim.AdamW, {"weight_decay": 0.3}),
}


def one_client():
    """One silo, one client, and every row in every minibatch."""
    draw = torch.Generator().manual_seed(5)
    x = {"a": torch.randn(ROWS, COLUMNS, generator=draw, dtype=torch.float64)}
    y = x["a"][:, :CLASSES].argmax(1)
    return Task({"a": mlp(COLUMNS, [5], CLASSES)}, "cross-entropy"), partition(x, y, {"a": [1.0]})


def fitted(algorithm, rounds=STEPS, engine="stacked", rows=None):
    learn, place = rows or one_client()
    run = Run(algorithm, learn, place, engine=engine, precision="float64", seed=3)
    return run.fit(rounds)


def plain_torch(kind, settings, lr, clip=None, steps=STEPS, before=None):
    """torch's own training of the block that a run starts from."""
    learn, rows = one_client()
    start = Run(TDCD(batch=None), learn, rows, precision="float64", seed=3).fit(0)
    start.state = start.algorithm.start(start.fed)
    module = start.export("a")
    x, y = rows.x["a"].double(), rows.labels()
    optimizer = kind(module.parameters(), lr=lr, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        if before is not None:
            before(module)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return dict(module.named_parameters())


def assert_equal(run, wanted):
    block = run.algorithm.blocks(run.fed, run.state)["a"].block
    assert block.keys() == wanted.keys()
    for name, value in block.items():
        assert (value - wanted[name]).abs().max() < TOLERANCE, name


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("name", PAIRS)
def test_local_steps_are_torchs(name, engine):
    """In one long round, whose steps share a fresh memory."""
    ours, kind, settings = PAIRS[name]
    run = fitted(TDCD(local_steps=STEPS, lr=0.05, batch=None, optimizer=ours), 1, engine)
    assert_equal(run, plain_torch(kind, settings, 0.05))


@pytest.mark.parametrize("algorithm", [TDCD, FedAvg, FedBCD, TDCDPrivateLabels, SplitNN, Central])
@pytest.mark.parametrize("name", ["nesterov", "adam with decay"])
def test_what_is_kept_goes_on_from_round_to_round(name, algorithm):
    ours, kind, settings = PAIRS[name]
    kept = type(ours)(**{**vars(ours), "state": "kept"})
    steps = 1 if algorithm is SplitNN else 3  # its derivative is frozen for the steps of a round
    given = {"local_steps": steps, "lr": 0.05, "batch": None, "optimizer": kept}
    assert_equal(fitted(algorithm(**given), STEPS // steps), plain_torch(kind, settings, 0.05))


def test_fresh_ones_begin_anew_in_every_round():
    given = {"local_steps": 3, "lr": 0.05, "batch": None}
    fresh, kept = (fitted(TDCD(**given, optimizer=Adam(state=s)), 2) for s in ("fresh", "kept"))
    once = fitted(TDCD(**given, optimizer="adam"), 1)
    assert tree.largest_difference(*(r.fed.read(r.state.theta) for r in (fresh, kept))) > 1e-3
    assert_equal(once, plain_torch(torch.optim.Adam, {}, 0.05, steps=3))


@pytest.mark.parametrize("clip", [0.01, 0.3, 1e6])
def test_gradients_are_clipped_as_torch_does(clip):
    ours = AdamW(clip_norm=clip, weight_decay=0.1)
    run = fitted(TDCD(local_steps=STEPS, lr=0.05, batch=None, optimizer=ours), 1)
    wanted = plain_torch(torch.optim.AdamW, {"weight_decay": 0.1}, 0.05, clip)
    assert_equal(run, wanted)


def test_l2_belongs_to_the_loss_and_is_clipped_with_it():
    def with_l2(module):
        for p in module.parameters():
            p.grad += 0.4 * p.detach()

    ours = SGD(clip_norm=0.2, momentum=0.5)
    run = fitted(TDCD(local_steps=STEPS, lr=0.1, batch=None, l2=0.4, optimizer=ours), 1)
    assert_equal(run, plain_torch(torch.optim.SGD, {"momentum": 0.5}, 0.1, 0.2, before=with_l2))


HUBS = {
    "relaxed": (Relaxed(0.3), torch.optim.SGD, {}, 0.3),
    "momentum": (Relaxed(0.5, momentum=0.8), torch.optim.SGD, {"momentum": 0.8}, 0.5),
    "adam": (
        HubAdam(0.02, (0.7, 0.9), 1e-3),
        torch.optim.Adam,
        {"betas": (0.7, 0.9), "eps": 1e-3},
        0.02,
    ),
}


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("name", HUBS)
def test_hub_steps_are_torchs(name, engine):
    """With Q = 1 and lr = 1, theta - mean is the gradient."""
    ours, kind, settings, rate = HUBS[name]
    run = fitted(TDCD(local_steps=1, lr=1.0, batch=None, hub=ours), STEPS, engine)
    assert_equal(run, plain_torch(kind, settings, rate))


def test_the_middle_and_the_top_are_stepped_too():
    """Also what server and label silo train moves by lr in Adam's first step, where a part's
    clients agree on the sign."""
    for algorithm, parts in ((SplitNN, ("top",)), (SplitNNU, ("top", "middle"))):
        given = {"local_steps": 1, "lr": 0.01, "batch": None, "weighting": "rows"}
        sample = (task(head=True), placement())
        sample = sample if algorithm is SplitNN else sample_of(algorithm(**given))
        run = fitted(algorithm(**given, optimizer=Adam(state="kept", eps=1e-12)), 1, rows=sample)
        start = run.algorithm.start(run.fed)
        for name in parts:
            before, after = (run.fed.read(getattr(s, name)) for s in (start, run.state))
            moved = [
                (a - b).abs()
                for a, b in zip(tree.tensors(before), tree.tensors(after), strict=True)
            ]
            assert torch.cat([a.flatten() for a in moved]).max() == pytest.approx(0.01, rel=1e-6)
        hub = fitted(algorithm(**given, hub=HubAdam(0.02, eps=1e-12)), 1, rows=sample)
        before, after = (hub.fed.read(s.top) for s in (start, hub.state))
        assert tree.largest_difference(before, after) == pytest.approx(0.02, rel=1e-6)


def test_a_client_without_rows_takes_no_step_and_remembers_what_it_did():
    theta = Theta({"w": torch.ones(3, dtype=torch.float64)}, {})
    gradient, yes, no = tree.scale(theta, 2.0), torch.tensor(True), torch.tensor(False)
    lr = torch.tensor(0.1, dtype=torch.float64)
    for ours in (Adam(weight_decay=0.1), SGD(momentum=0.9), AdamW(clip_norm=0.1)):
        moved, memory = ours.step(theta, gradient, ours.init(theta), lr, yes)
        stayed = ours.step(moved, gradient, memory, lr, no)
        assert tree.largest_difference(moved, theta) > 0
        assert tree.largest_difference(stayed, (moved, memory)) == 0


@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_running_statistics_are_no_optimisers_business(engine):
    """Decay would shrink them, and momentum carry them on: they are those of plain SGD whose steps
    are too small to move weights."""

    _, rows = one_client()
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(COLUMNS, CLASSES), nn.BatchNorm1d(CLASSES))

    def statistics(**settings):
        algorithm = TDCD(local_steps=2, batch=None, lr=1e-12, **settings)
        layer = fitted(algorithm, 2, engine, (Task({"a": normed}, "cross-entropy"), rows)).export(
            "a"
        )[1]
        return torch.cat([layer.running_mean, layer.running_var])

    plain = statistics()
    decayed = statistics(optimizer=AdamW(weight_decay=0.5, state="kept"))
    assert torch.allclose(decayed, plain, atol=1e-9)
    assert float((plain - torch.tensor([0.0, 0, 0, 1, 1, 1])).abs().min()) > 1e-3  # they moved


def test_hubs_take_the_mean_of_running_statistics():
    theta = Theta({"1.weight": torch.ones(2), "1.running_mean": torch.full((2,), 5.0)}, {})
    hub, mean = HubAdam(), tree.scale(theta, 0.5)
    after = stepped(hub, theta, mean, hub.optimizer.init(trained_part(theta)), 1).theta
    assert torch.equal(after.block["1.running_mean"], mean.block["1.running_mean"])
    assert list(after.block) == list(theta.block)


def test_single_precision_keeps_the_digits_of_a_long_memory():
    """1 - beta^t loses them when beta is near 1."""
    g = torch.tensor([1e-3, 1.0])
    ours, theta = Adam(betas=(0.9, 0.9999)), Theta({"w": torch.zeros(2)}, {})
    new, _ = ours.step(
        theta, Theta({"w": g}, {}), ours.init(theta), torch.tensor(0.1), torch.tensor(True)
    )
    assert new.block["w"] == pytest.approx(torch.tensor([-0.1, -0.1]), rel=2e-5)


def test_auto_is_one_over_the_silos_that_step_at_once():
    learn, rows = task(), placement()
    for algorithm, rate in (
        (TDCD(hub=Relaxed("auto"), batch=12), 1 / 3),
        (FedBCD(hub=Relaxed("auto"), order="sequential", batch=12), 1.0),
    ):
        run = Run(algorithm, learn, rows).fit(1, every=1, progress=False)
        assert run.records[-1].notes == {"relaxation": rate}
    assert (
        Run(TDCD(batch=12), learn, rows).fit(1, every=1, progress=False).records[-1].notes is None
    )


@pytest.mark.parametrize("algorithm", [TDCD, TDCDPrivateLabels, SplitNN])
def test_they_send_nothing_more(algorithm):
    learn = task(head=algorithm is not TDCDPrivateLabels)
    given = {"local_steps": 2, "batch": 12}
    plain = Run(algorithm(**given), learn, placement()).fit(2)
    for more in ({"optimizer": Adam(state="kept")}, {"hub": "adam"}):
        assert list(Run(algorithm(**given, **more), learn, placement()).fit(2).ledger) == list(
            plain.ledger
        )


@pytest.mark.parametrize("setting", ["sgd", SGD(), SGD(dampening=0.0, weight_decay=0.0)])
def test_plain_sgd_needs_no_optimiser(setting):
    assert optimizer_of(setting) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Relaxed(0.0), "relaxation must be above 0"),
        (lambda: Relaxed(-1), "relaxation must be above 0"),
        (lambda: HubAdam(lr=0), "lr must be above 0"),
        (lambda: Relaxed(momentum=1.0), "momentum must be at least 0 and below 1"),
        (lambda: Adam(betas=(0.9, 1.0)), "below 1"),
        (lambda: Adam(clip_norm=0), "clip_norm must be above 0"),
        (lambda: SGD(nesterov=True), "give momentum"),
        (lambda: SGD(momentum=0.5, dampening=0.1, nesterov=True), "leave one of them out"),
        (lambda: SGD(state="kept"), "nothing is kept"),
        (lambda: TDCD(optimizer="adm"), "did you mean 'adam'"),
        (lambda: TDCD(hub="relaxed"), "known: adam, mean"),
    ],
)
def test_settings_that_do_not_fit(make, words):
    with pytest.raises(errors.SettingError, match=words):
        make()


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (
            TDCD(batch=9, optimizer="adam", privacy=Privacy("frozen", clip=1.0, noise=1.0)),
            'mode frozen.*optimizer is Adam.*mode = "trained"',
        ),
        (FedBCD(batch=9, order="sequential", optimizer=Adam(state="kept")), 'state = "fresh"'),
        (HyFEMAvg(batch=9, optimizer=Adam(state="kept")), 'state = "fresh"'),
    ],
)
def test_runs_that_do_not_fit(algorithm, words):
    learn = task(head=True) if algorithm.takes_head else task()
    with pytest.raises(errors.SettingError, match=words):
        Run(algorithm, learn, placement(), precision="float64")
