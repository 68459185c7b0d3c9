"""HyFEM against its paper: the special cases, the matching, the partition, both accuracies."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedloom import Run, Task, load_model
from fedloom.algorithms import TDCD, HyFEMAvg, HyFEMProx
from fedloom.algorithms.hyfem.parts import Server, first_maps, merge, own_model
from fedloom.core import tree
from fedloom.core.errors import DataError, InputError, ModelError, SettingError
from fedloom.data.dataset import Dataset
from fedloom.data.partition.views import (
    HYFEM_CLASSES,
    HYFEM_VIEWS,
    class_view_cut,
    masked_to,
    small_set,
    unused_cells,
)
from fedloom.data.placement import Placement, Shard
from fedloom.fabric.schedule import Moment, Scripted
from fedloom.models.library import mlp
from fedloom.models.matching import match
from fedloom.models.multiview import columns, multiview, perceptron
from fedloom.models.task import Theta

VIEWS = {"0": [0, 1], "1": [1, 2], "2": [0, 2], "3": [0, 1, 2]}
ALL = [[0, 1, 2]] * 4


def task(hidden=(6,), outputs=3, views=3, wide=4):
    return Task(
        {"views": multiview(views, [wide], outputs, view_width=3, hidden=hidden)}, "cross-entropy"
    )


def made_up(classes=3, views=3, rows=240, seed=0, noise=0.5):
    """Every view of a thing is a noisy picture of its class."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    pictures = 2 * torch.randn(views, classes, 4, generator=draw)
    blocks = {
        f"view {v}": pictures[v][y] + noise * torch.randn(rows, 4, generator=draw)
        for v in range(views)
    }
    test = np.arange(rows) // classes % 4 == 3
    names = tuple(map(str, range(classes)))
    return Dataset("made up", np.arange(rows), blocks, y, test, "classes", classes=names)


def fedprox(run, mu, rounds):
    """FedProx in plain torch: for every client, Q steps on loss + mu |theta - global|^2; mean."""
    theta = run.algorithm.blocks(run.fed, run.algorithm.start(run.fed))["views"].block
    module = run.fed.parts.value["views"].block.with_params(theta)
    x, y = run.placement.x["views"], run.placement.y["views"]
    owner, settings = run.placement.owner["views"], run.algorithm
    whole = {name: a.detach().clone() for name, a in module.named_parameters()}
    for round in range(rounds):
        models = []
        for client in range(4):
            with torch.no_grad():
                for name, a in module.named_parameters():
                    a.copy_(whole[name])
            for q in range(settings.local_steps):
                stream = run.fed.streams.common("minibatch", round, q)
                ids = torch.from_numpy(stream.sample(len(y), settings.batch))
                own = ids[owner[ids] == client]
                if not len(own):
                    continue
                module.zero_grad()
                loss = F.cross_entropy(module(x[own]), y[own])
                far = sum(((a - whole[n]) ** 2).sum() for n, a in module.named_parameters())
                (loss + mu * far).backward()
                with torch.no_grad():
                    for a in module.parameters():
                        a -= settings.lr * a.grad
            models.append({name: a.detach().clone() for name, a in module.named_parameters()})
        whole = {name: torch.stack([own[name] for own in models]).mean(0) for name in whole}
    return whole


@pytest.mark.parametrize("engine", ["stacked", "reference"])
@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_with_all_views_and_pi_fixed_it_is_fedprox(engine, mu):
    """To 1e-10 in float64 after 5 rounds, ragged clients, one of them without rows (seed 3)."""
    algorithm = HyFEMProx(local_steps=4, lr=0.2, batch=16, sweeps=0, mu=mu)
    options = {"precision": "float64", "seed": 3, "engine": engine}
    run = Run(algorithm, task(), small_set(ALL), **options).fit(5)
    block = run.algorithm.blocks(run.fed, run.state)["views"].block
    assert tree.largest_difference(block, fedprox(run, mu, 5)) <= 1e-10


def test_matching_does_nothing_where_nothing_is_out_of_place():
    """Shared starts stay aligned: with P sweeps it is FedAvg all the same."""
    settings = {"local_steps": 3, "lr": 0.2, "batch": 16, "minibatch": "fresh"}
    runs = [
        Run(algorithm, task(), small_set(ALL), precision="float64").fit(5)
        for algorithm in (HyFEMAvg(**settings, sweeps=4), TDCD(**settings))
    ]
    a, b = (run.algorithm.blocks(run.fed, run.state) for run in runs)
    assert tree.largest_difference(a, b) <= 1e-10


def test_the_regulariser_has_a_gradient():
    """grad of mu |theta - start|^2 is 2 mu (theta - start), extractors included (seed 0)."""
    run = Run(HyFEMProx(mu=0.7, batch=None), task(), small_set(ALL), precision="float64")
    part = run.fed.parts.value["views"]
    start = part.initial(run.fed.streams)
    theta = tree.map_tensors(lambda a: a + 0.1, start)
    batch, _ = run.fed.minibatch(torch.arange(48))
    rows = next(iter(run.fed.read(batch).values()))
    gradients = [
        torch.func.grad(kind(mu=mu).objective)(theta, start, part, rows)
        for kind, mu in ((HyFEMProx, 0.7), (HyFEMProx, 0.0))
    ]
    for with_mu, without in zip(*map(tree.tensors, gradients), strict=True):
        assert (with_mu - without - 2 * 0.7 * 0.1).abs().max() <= 1e-12


def test_a_large_mu_holds_clients_back():
    far = []
    for mu in (0.0, 0.1, 1.0):
        algorithm = HyFEMProx(local_steps=8, lr=0.2, batch=None, views=VIEWS, mu=mu)
        run = Run(algorithm, task(), small_set(list(VIEWS.values())), precision="float64")
        before = run.algorithm.blocks(run.fed, run.algorithm.start(run.fed))
        after = run.algorithm.blocks(run.fed, run.fit(1).state)
        pairs = zip(tree.tensors(before), tree.tensors(after), strict=True)
        far.append(sum(float(((a - b) ** 2).sum()) for a, b in pairs))
    assert far[0] > far[1] > 1.5 * far[2], far


@pytest.mark.parametrize("hidden", [(6,), (6, 5)])
def test_permuted_copies_of_one_network_are_re_aligned_exactly(hidden):
    """At the hub: whatever theta_0 was, the mean of the copies is the network (to 1e-15)."""
    fed = Run(HyFEMAvg(batch=9), task(hidden), small_set(ALL), precision="float64", seed=1).fed
    part = fed.parts.value["views"]
    before, original = part.initial(fed.streams), part.initial(replace(fed.streams, seed=9))
    names, views = ("a", "b", "c"), dict.fromkeys("abc", (0, 1, 2))
    rng = np.random.default_rng(0)
    came = {
        name: own_model(
            original, views[name], tuple(torch.from_numpy(rng.permutation(n)) for n in hidden)
        )
        for name in names
    }
    server = merge(Server(before, first_maps(before, names, {})), came, views, 4, 0.5)
    for name in names:
        again = own_model(server.theta, views[name], server.maps[name])
        assert tree.largest_difference(again, came[name]) <= 1e-15
    x = torch.randn(9, 3, 4, dtype=torch.float64)
    assert (part.embed(server.theta, x) - part.embed(original, x)).abs().max() <= 1e-12


def test_the_objective_never_rises_within_a_sweep_in_a_run():
    """Clients of different views and widths, from perceptrons of their own (seeds 0-4)."""
    for seed in range(5):
        rows = small_set(list(VIEWS.values()), seed)
        run = Run(HyFEMAvg(batch=None, views=VIEWS), task((6, 5)), rows, precision="float64")
        part = run.fed.parts.value["views"]
        nets, inputs = {}, {}
        theta = part.initial(run.fed.streams)
        for k, (name, views) in enumerate(VIEWS.items()):
            own = part.initial(replace(run.fed.streams, seed=10 * seed + k))
            pi = tuple(torch.arange(n) for n in (6 - k, 5))
            inputs[name] = columns(theta.block, views)
            nets[name] = perceptron(own_model(own, views, pi).block, inputs[name])
        whole = perceptron(theta.block, columns(theta.block, [0, 1, 2]))
        maps = {n: tuple(np.arange(len(b)) for b in net.biases[:-1]) for n, net in nets.items()}
        matched = match(whole, nets, maps, sweeps=4)
        for layer in matched.objective:
            for values in layer:
                assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values))
            assert layer[-1][-1] <= layer[0][0]


def test_the_papers_partition():
    """58 of 480 cells of class and view are never used: 12.08 %."""
    assert unused_cells(HYFEM_CLASSES, HYFEM_VIEWS, 40, 12) == 58
    assert {len(classes) for classes in HYFEM_CLASSES.values()} == {15}
    assert {len(classes) for classes in HYFEM_VIEWS.values()} == {6}
    federated = class_view_cut(made_up(40, 12, 400), HYFEM_CLASSES, HYFEM_VIEWS)
    assert federated.notes == ("58 of 480 cells of class and view are at no client (12.08%)",)
    rows = federated.train
    y, owner = rows.labels(), rows.owner["views"]
    for k, name in enumerate(rows.topology.clients["views"]):
        classes = rows.x["views"][owner == k]
        assert set(y[owner == k].tolist()) == set(HYFEM_CLASSES[name])
        seen = (classes != 0).flatten(2).any(2).any(0)
        assert seen.nonzero().flatten().tolist() == sorted(HYFEM_VIEWS[name])
    assert rows.size == 8 * 8 * 15  # rows of a class, clients, classes of a client
    assert federated.test.size == 80
    assert bool((federated.test.x["views"] != 0).flatten(2).any(2).all())


def test_rows_can_be_dealt_out_once():
    data = made_up(classes=4)
    classes = {"a": [0, 1, 2], "b": [1, 2, 3], "c": [0, 3]}
    views = {"a": [0, 1], "b": [1, 2], "c": [0, 2]}
    whole = class_view_cut(data, classes, views).train
    dealt = class_view_cut(data, classes, views, overlap=False).train
    things = [row.split("@")[0] for row in dealt.ids.tolist()]
    assert len(set(things)) == len(things) == int((~data.test).sum())
    assert whole.size == 2 * dealt.size


def learned(views, classes, algorithm=None, rounds=30, data=None):
    federated = class_view_cut(data or made_up(), classes, views)
    settings = {"local_steps": 5, "lr": 0.1, "batch": 100, "views": dict(views)}
    return Run(algorithm or HyFEMAvg(**settings), task((8,)), federated, seed=1).fit(
        rounds, every=rounds
    )


def test_both_accuracies_are_recorded():
    """Global: all views. Local: every client's own model, on all test rows, by its own views."""
    views = {"a": [0, 1], "b": [1, 2], "c": [0, 2]}
    run = learned(views, {"a": [0, 1], "b": [1, 2], "c": [2, 0]}, data=made_up(noise=2.5))
    last, y = run.records[-1].metrics, run.test.labels()
    part = run.fed.parts.value["views"]
    thetas = run.algorithm.blocks(run.fed, run.state)["views"]
    x = run.test.x["views"]
    scores = part.embed(thetas, x.float())
    assert last["accuracy"] == pytest.approx(float((scores.argmax(1) == y).float().mean()))
    hits = []
    for name, own_views in views.items():
        own = part.embed(thetas, masked_to(x, own_views).float())
        assert torch.allclose(run.predict(run.test, client=name), own, atol=1e-5)
        hits.append(float((own.argmax(1) == y).float().mean()))
    assert last["local_accuracy"] == pytest.approx(sum(hits) / 3)
    assert run.evaluate() == last
    assert last["accuracy"] > last["local_accuracy"] > 0.5
    assert run.records[0].metrics["accuracy"] < 0.5


@pytest.mark.parametrize(
    ("views", "classes"),
    [
        ({"a": [0, 1, 2], "b": [0, 1, 2]}, {"a": [0, 1], "b": [1, 2]}),
        ({"a": [0], "b": [1], "c": [2]}, {name: [0, 1, 2] for name in "abc"}),
        ({"a": [0], "b": [1, 2]}, {"a": [0, 1], "b": [1, 2]}),
    ],
    ids=["horizontal", "vertical", "hybrid, no view in common"],
)
def test_horizontal_and_vertical_are_special_cases(views, classes):
    """The global model, which nobody had the data for, is right on rows with all views."""
    run = learned(views, classes)
    assert run.records[-1].metrics["accuracy"] > 0.8


def test_prediction_from_partial_views():
    """The global model takes what there is; a client's own model looks at nothing else."""
    run = learned({"a": [0, 1], "b": [1, 2]}, {"a": [0, 1, 2], "b": [0, 1, 2]})
    test, whole = run.test, run.predict(run.test)
    partial = replace(test, x={"views": masked_to(test.x["views"], [1, 2])})
    assert not torch.allclose(run.predict(partial), whole)
    assert run.evaluate(partial)["accuracy"] > 0.6
    assert torch.equal(run.predict(partial, client="b"), run.predict(test, client="b"))
    with pytest.raises(SettingError, match="there is no client 'z'"):
        run.predict(test, client="z")


def test_the_global_model_is_saved_and_loaded(tmp_path):
    run = learned({"a": [0, 1], "b": [1, 2]}, {"a": [0, 1, 2], "b": [0, 1, 2]}, rounds=2)
    run.save(tmp_path)
    again = load_model(tmp_path)
    assert torch.allclose(again.predict(run.test), run.predict(run.test), atol=1e-6)


def test_clients_of_different_widths():
    """A narrow client gets less; neurons that nobody uses are zero and change no score."""
    rows = small_set(list(VIEWS.values()))
    settings = {"local_steps": 3, "lr": 0.2, "batch": 24, "views": VIEWS}
    narrow = HyFEMAvg(**settings, widths={name: [3 + int(name) % 2] for name in VIEWS})
    run = Run(narrow, task((9,)), rows, precision="float64").fit(6)
    wide = Run(HyFEMAvg(**settings), task((9,)), rows, precision="float64").fit(1)
    assert run.ledger.total() / 6 < wide.ledger.total()
    theta: Theta = run.algorithm.blocks(run.fed, run.state)["views"]
    maps = run.fed.read(run.state.maps)["views"]
    used = {int(place) for (places,) in maps.values() for place in places}
    empty = sorted(set(range(9)) - used)
    assert empty
    assert not theta.block["layers.0.weight"][empty].any()
    assert not theta.block["layers.1.weight"][:, empty].any()
    assert not theta.block["layers.0.bias"][empty].any()


def test_an_absent_client_keeps_its_place():
    """While the others, whose neurons were put in another order, find new ones."""
    away = Scripted({Moment(round): {"views": ["3"]} for round in range(3)})
    settings = {"local_steps": 2, "lr": 0.3, "batch": None, "views": VIEWS}
    rows = small_set(list(VIEWS.values()))
    run = Run(HyFEMAvg(**settings), task(), rows, schedule=away).fit(1)
    maps = run.fed.read(run.state.maps)["views"]
    assert all(torch.equal(places, torch.arange(6)) for (places,) in maps.values())
    turned = {name: (torch.arange(6).roll(int(name) + 1),) for name in maps}
    server = Server(run.algorithm.blocks(run.fed, run.state)["views"], turned)
    came = {name: own_model(server.theta, VIEWS[name], maps[name]) for name in ("0", "1", "2")}
    again = run.algorithm.merge(server.theta, turned, came)
    for name in ("0", "1", "2"):  # they brought neurons 0, 1, ... and are found to be these
        assert torch.equal(again.maps[name][0], torch.arange(6))
    assert torch.equal(again.maps["3"][0], turned["3"][0])
    alone = run.algorithm.merge(server.theta, turned, {"0": came["0"]})
    assert torch.equal(alone.maps["0"][0], torch.arange(6))  # matched with theta_0
    assert np.isfinite(run.fit(3).loss())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": {**VIEWS, "3": [0, 1]}, "widths": None}, None),
        ({"views": {name: [0, 1] for name in "0123"}}, "nobody holds 2; give them to a client"),
        ({"views": {**VIEWS, "1": []}}, "client '1' holds none"),
        ({"views": {**VIEWS, "9": [0]}}, "there is no client '9'"),
        ({"views": {k: v for k, v in VIEWS.items() if k != "2"}}, "nothing for client '2'"),
        ({"views": {**VIEWS, "1": [1, 7]}}, "'1' has 7; there are 0 to 2"),
        ({"views": {**VIEWS, "1": [1, 1]}}, "a number twice"),
        ({"views": {**VIEWS, "0": [0]}}, "client views/0 has numbers in view 1"),
        ({"widths": {"0": [0]}}, "from 1 to 6"),
        ({"widths": {"0": [7]}}, "from 1 to 6"),
        ({"widths": {"0": [3, 3]}}, "'0' has 2, the model 1 layers"),
        ({"widths": {"x": [3]}}, "there is no client 'x'"),
        ({"mu": -0.1}, "mu must be at least 0"),
        ({"sweeps": -1}, "sweeps must be at least 0"),
        ({"price": float("nan")}, "price: a number is expected, not nan"),
    ],
)
def test_what_is_refused(settings, message):
    rows = small_set(list(VIEWS.values()))
    if message is None:  # the last client's third view is there, though it is not said to be
        message = "client views/3 has numbers in view 2"
    with pytest.raises(InputError, match=message):
        Run(HyFEMProx(batch=None, **settings), task(), rows)


def test_models_and_data_that_do_not_fit():
    rows, model = small_set(ALL), made_up()
    other = Task({"views": mlp(12, [5], 3, flatten=True)}, "cross-entropy")
    with pytest.raises(ModelError, match="needs the model 'multiview'"):
        Run(HyFEMAvg(batch=None), other, rows)
    with pytest.raises(ModelError, match="2 views"):
        Run(HyFEMAvg(batch=None), task(views=2), rows)
    with pytest.raises(SettingError, match="hidden must be at least 1"):
        task(hidden=[0])
    shard = Shard(np.arange(3), torch.ones(3, 3, 4), torch.arange(3))
    two = Placement.of({"views": {"0": shard}, "other": {"0": shard}})
    blocks = {silo: multiview(3, [4], 3) for silo in ("views", "other")}
    with pytest.raises(DataError, match="one silo"):
        Run(HyFEMAvg(batch=None), Task(blocks, "cross-entropy"), two)
    with pytest.raises(SettingError, match="for the same clients"):
        class_view_cut(made_up(), {"a": [0]}, {"b": [0]})
    with pytest.raises(DataError, match="several blocks of one shape"):
        class_view_cut(
            replace(model, blocks={"only": model.blocks["view 0"]}), {"a": [0]}, {"a": [0]}
        )
