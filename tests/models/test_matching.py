"""Matched averaging: laws of the assignment, the objective, the mean, and its speed."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedloom.models.matching import (
    Neurons,
    Perceptron,
    assigned,
    average,
    distances,
    identity,
    match,
    match_layer,
    project,
)

SEEDS = st.integers(0, 10_000)


def perceptron(rng, inputs, hidden, outputs, scale=1.0):
    """A random network; `inputs`: how many, or which of the global ones."""
    at = np.arange(inputs) if isinstance(inputs, int) else np.asarray(inputs)
    sizes = [len(at), *hidden, outputs]
    weights = (scale * rng.normal(size=(b, a)) for a, b in itertools.pairwise(sizes))
    return Perceptron(tuple(weights), tuple(scale * rng.normal(size=b) for b in sizes[1:]), at)


def shuffled(rng, net):
    """The same function with its hidden neurons in another order."""
    orders = [rng.permutation(len(b)) for b in net.biases[:-1]]
    return project(net, net.inputs, tuple(orders))


def run(net, x):
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        x = np.maximum(x @ w.T + b, 0)
    return x @ net.weights[-1].T + net.biases[-1]


def apart(a, b):
    pairs = zip((*a.weights, *a.biases), (*b.weights, *b.biases), strict=True)
    return max(np.abs(x - y).max() for x, y in pairs)


def inputs_of(nets):
    return {name: net.inputs for name, net in nets.items()}


def objective(whole, nets, maps):
    """The squared distance of one-hidden-layer networks from their mean, output biases aside."""
    mean = average(whole, nets, maps, inputs_of(nets))
    total = 0.0
    for name, net in nets.items():
        projected = project(mean, net.inputs, maps[name])
        total += sum(
            ((a - b) ** 2).sum() for a, b in zip(net.weights, projected.weights, strict=True)
        )
        total += ((net.biases[0] - projected.biases[0]) ** 2).sum()
    return total


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(0, 4))
def test_permuted_copies_are_aligned_exactly(seed, layers, more):
    """Whatever the global network was, and whether it is wider or not."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(2, 9, layers).tolist()
    original = perceptron(rng, 5, hidden, 3)
    whole = perceptron(rng, 5, [width + more for width in hidden], 3)
    nets = {str(k): shuffled(rng, original) for k in range(4)}
    matched = match(whole, nets, dict.fromkeys(nets, identity(hidden)), sweeps=3)
    mean = average(whole, nets, matched.maps, inputs_of(nets))
    for name, net in nets.items():
        assert apart(project(mean, net.inputs, matched.maps[name]), net) <= 1e-14
    x = rng.normal(size=(7, 5))
    assert np.abs(run(mean, x) - run(original, x)).max() <= 1e-12


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 2), st.integers(0, 3), st.sampled_from([0.0, 0.3, 1.0, 5.0]))
def test_the_objective_never_rises(seed, layers, more, price):
    rng = np.random.default_rng(seed)
    wide = rng.integers(3, 8, layers).tolist()
    whole = perceptron(rng, 6, [width + more for width in wide], 2)
    nets = {}
    for k in range(4):
        inputs = rng.permutation(6)[: rng.integers(1, 7)]
        nets[str(k)] = perceptron(rng, inputs, [int(rng.integers(1, w + 1)) for w in wide], 2)
    maps = {name: identity([len(b) for b in net.biases[:-1]]) for name, net in nets.items()}
    matched = match(whole, nets, maps, 4, price)
    for sweeps in matched.objective:
        assert 1 <= len(sweeps) <= 4
        for values in sweeps:
            assert all(b <= a + 1e-9 for a, b in itertools.pairwise(values))
        for before, after in itertools.pairwise(sweeps):  # computed again
            assert after[0] == pytest.approx(before[-1], abs=1e-9)
    for pi in matched.maps.values():
        for places, width in zip(pi, whole.biases[:-1], strict=True):
            assert len(set(places)) == len(places)
            assert 0 <= min(places) <= max(places) < len(width)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_the_objective_is_the_distance_of_the_networks(seed, width):
    """With one hidden layer, of equal widths, and views that overlap."""
    rng = np.random.default_rng(seed)
    whole = perceptron(rng, 6, [width], 2)
    views = ([0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 4, 5])
    nets = {str(k): perceptron(rng, views[k], [width], 2) for k in range(3)}
    matched = match(whole, nets, dict.fromkeys(nets, identity([width])), 3, price=0.0)
    last = matched.objective[0][-1][-1]
    assert last == pytest.approx(objective(whole, nets, matched.maps), rel=1e-9)


def test_two_networks_are_matched_as_well_as_can_be():
    """Against all permutations, from several starts (seeds 0-9, 5 neurons)."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        whole = perceptron(rng, 4, [5], 2)
        nets = {"a": perceptron(rng, 4, [5], 2), "b": perceptron(rng, 4, [5], 2)}
        matched = match(whole, nets, dict.fromkeys(nets, identity([5])), 2)
        best = min(
            objective(whole, nets, {"a": identity([5])} | {"b": (np.array(order),)})
            for order in itertools.permutations(range(5))
        )
        assert objective(whole, nets, matched.maps) == pytest.approx(best, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
@example(232)  # two neurons that each have a place of their own
def test_neither_names_nor_order_matter(seed):
    rng = np.random.default_rng(seed)
    whole = perceptron(rng, 4, [6], 3)
    nets = {str(k): perceptron(rng, 4, [int(rng.integers(3, 7))], 3) for k in range(4)}
    maps = {name: identity([len(net.biases[0])]) for name, net in nets.items()}
    other = {f"renamed {name}": nets[name] for name in reversed(nets)}
    first = match(whole, nets, maps, 3)
    second = match(whole, other, {f"renamed {name}": maps[name] for name in maps}, 3)
    for name, pi in first.maps.items():
        assert np.array_equal(pi[0], second.maps[f"renamed {name}"][0])


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([(7, 0.5), (7, 3.0), (5, 0.0)]))
def test_what_is_matched_already_stays(seed, case):
    """Nothing is shuffled without gain; a neuron of its own moves only where that has a price."""
    width, price = case
    rng = np.random.default_rng(seed)
    whole = perceptron(rng, 4, [7], 3)
    maps = {str(k): (rng.permutation(7)[:width],) for k in range(3)}
    inputs = np.arange(4)
    nets = {name: project(whole, inputs, pi) for name, pi in maps.items()}
    matched = match(whole, nets, maps, 3, price)
    assert all(np.array_equal(matched.maps[name][0], maps[name][0]) for name in maps)


def test_a_price_makes_neurons_share():
    """Noisy copies in a network with room for all: for nothing each keeps to itself."""
    rng = np.random.default_rng(0)
    original = perceptron(rng, 6, [4], 2)
    nets = {}
    for k in range(3):
        noisy = shuffled(rng, original)
        nets[str(k)] = noisy._replace(
            weights=tuple(w + 0.05 * rng.normal(size=w.shape) for w in noisy.weights)
        )
    own = {str(k): (np.arange(4 * k, 4 * k + 4),) for k in range(3)}

    def used(price):
        start = {name: own[name][0] for name in nets}
        neurons = {
            name: Neurons(np.c_[net.weights[0], net.biases[0]], np.arange(7))
            for name, net in nets.items()
        }
        places, _ = match_layer(neurons, start, (12, 7), 4, price)
        return len(set(np.concatenate(list(places.values()))))

    assert used(0.0) == 12
    assert used(0.5) == 4


def test_the_worst_fitting_client_is_visited_first():
    """Of five copies one is out of place; when it was visited there is nothing left to do."""
    rows = np.random.default_rng(2).normal(size=(4, 3))
    neurons = {name: Neurons(rows, np.arange(3)) for name in "abcyz"}
    start = dict.fromkeys(neurons, np.arange(4)) | {"y": np.array([2, 0, 3, 1])}
    ended, ((before, *after), _) = match_layer(neurons, start, (4, 3), 2, 0.0)
    assert before > 1
    assert after == pytest.approx([0.0] * 5, abs=1e-12)
    assert all(np.array_equal(places, np.arange(4)) for places in ended.values())


def test_the_price_is_in_mean_squared_lengths_of_neurons():
    """For each global neuron in use."""
    rng = np.random.default_rng(1)
    neurons = {str(k): Neurons(rng.normal(size=(3, 4)), np.arange(4)) for k in range(5)}
    start = {name: rng.permutation(6)[:3] for name in neurons}
    free, dear = (match_layer(neurons, start, (6, 4), 1, price)[1][0][0] for price in (0.0, 0.7))
    length = np.mean([(own.rows**2).sum(1).mean() for own in neurons.values()])
    used = len(set(np.concatenate(list(start.values()))))
    assert dear - free == pytest.approx(0.7 * length * used)


def test_the_mean_is_over_those_who_have_a_number():
    whole = Perceptron((np.full((2, 3), 9.0), np.full((1, 2), 9.0)), (np.full(2, 9.0), np.ones(1)),
                       np.arange(3))  # fmt: skip
    inputs = {"a": np.array([0, 1]), "b": np.array([1]), "gone": np.array([2])}
    maps = {"a": (np.array([0]),), "b": (np.array([0]),), "gone": (np.array([0]),)}
    nets = {
        "a": Perceptron((np.array([[1.0, 2.0]]), np.array([[4.0]])), (np.ones(1), np.ones(1)),
                        inputs["a"]),
        "b": Perceptron((np.array([[4.0]]), np.array([[8.0]])), (3 * np.ones(1), 3 * np.ones(1)),
                        inputs["b"]),
    }  # fmt: skip
    mean = average(whole, nets, maps, inputs)
    assert mean.weights[0].tolist() == [[1.0, 3.0, 9.0], [0.0, 0.0, 0.0]]
    assert mean.weights[1].tolist() == [[6.0, 0.0]]
    assert (mean.biases[0].tolist(), mean.biases[1].tolist()) == ([2.0, 0.0], [2.0])


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_costs_are_those_of_a_loop(seed):
    rng = np.random.default_rng(seed)
    own = Neurons(rng.normal(size=(3, 2)), np.array([0, 2]))
    theirs = rng.normal(size=(4, 3))
    slow = [[((x - y[own.at]) ** 2).sum() for y in theirs] for x in own.rows]
    assert np.abs(distances(own, theirs) - slow).max() <= 1e-12
    costs = rng.random((3, 5))
    now = rng.permutation(5)[:3]
    best = min(
        costs[range(3), list(places)].sum() for places in itertools.permutations(range(5), 3)
    )
    assert costs[range(3), assigned(costs, now)].sum() == pytest.approx(best, abs=1e-10)


def test_matching_is_vectorised(interpreted):
    """Sixteen times as many neurons, inputs and outputs are hardly more for Python to do."""

    def sweeps(wide):
        rng = np.random.default_rng(0)
        whole = perceptron(rng, wide, [wide], wide)
        nets = {str(k): perceptron(rng, wide, [wide], wide) for k in range(8)}
        maps = dict.fromkeys(nets, identity([wide]))
        return lambda: match(whole, nets, maps, sweeps=1)

    sweeps(8)()  # what it imports is there
    few = interpreted(sweeps(8))
    assert few > 1000
    assert interpreted(sweeps(128)) < 1.1 * few
