"""Matched averaging: combines perceptrons of different widths and inputs neuron by neuron.

A map Pi_m relates a client's network to the global one. For every hidden layer, it gives the number
of the global neuron that each local neuron corresponds to (no two to the same one). Inputs and
outputs have fixed places. Layer by layer, from the inputs, `match` searches maps that minimise

    sum_m sum_i |x_{m,i} - theta_{Pi_m(i)}|^2  +  price * (global neurons in use)

where x_{m,i} is a neuron: its incoming weights and its bias; in the last hidden layer also its
outgoing weights, whose other ends, the outputs, are the same everywhere. With one hidden layer the
sum is the whole squared distance between the networks (output biases do not depend on Pi).

Only the weights that a client has are compared: a network that lacks an input lacks its weights.
Global neurons that a client does not use are matched with dummies of zero weight, which are in no
mean. The price is the cost of a global neuron: without it, every local neuron would take a global
one of its own as long as there are any.

A sweep visits every client, the worst fitting first, so that names and order do not matter. It
gives the client the best map while the other maps stay as they are, with theta minimised out: an
assignment problem (Hungarian algorithm). The objective never rises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.rng import Floats, Ints

Pi = tuple[Ints, ...]  # for each hidden layer, the global neuron of each local one

SAME = 1e-12  # a map is replaced only if the gain exceeds this part of the largest cost


class Perceptron(NamedTuple):
    """Weights [out, in] and biases [out] of each layer. `inputs`: the positions of its inputs among
    the global inputs."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    inputs: Ints


class Neurons(NamedTuple):
    """A layer's neurons as rows. `at`: the positions of their numbers in a global neuron's row."""

    rows: Floats
    at: Ints


@dataclass(frozen=True)
class Matched:
    """The maps, and the objective of every hidden layer: for each sweep a list, before it and after
    each visit."""

    maps: dict[str, Pi]
    objective: list[list[list[float]]]


def identity(widths: Sequence[int]) -> Pi:
    """The map from each local neuron to the global one of the same number."""
    return tuple(np.arange(width) for width in widths)


def project(whole: Perceptron, inputs: Ints, pi: Pi) -> Perceptron:
    """Pi_m theta_0: a client's part of the global network."""
    places = _places(inputs, pi, len(whole.biases[-1]))
    weights = tuple(w[np.ix_(places[i + 1], places[i])] for i, w in enumerate(whole.weights))
    return Perceptron(weights, tuple(b[places[i + 1]] for i, b in enumerate(whole.biases)), inputs)


def average(
    whole: Perceptron,
    nets: Mapping[str, Perceptron],
    maps: Mapping[str, Pi],
    inputs: Mapping[str, Ints],
) -> Perceptron:
    """theta_0 for given maps: the mean of every number over the networks in `nets` that have it. A
    number that only absent clients have stays (`maps` and `inputs` are of all clients); a number
    that no client has is zero."""
    counted, total, count = _zeros(whole), _zeros(whole), _zeros(whole)
    for name, pi in maps.items():
        places = _places(inputs[name], pi, len(whole.biases[-1]))
        for i in range(len(whole.weights)):
            box = np.ix_(places[i + 1], places[i])
            counted.weights[i][box], counted.biases[i][places[i + 1]] = 1, 1
            if name in nets:
                total.weights[i][box] += nets[name].weights[i]
                total.biases[i][places[i + 1]] += nets[name].biases[i]
                count.weights[i][box] += 1
                count.biases[i][places[i + 1]] += 1

    def mean(was: Floats, has: Floats, sums: Floats, counts: Floats) -> Floats:
        return np.where(counts > 0, sums / np.maximum(counts, 1), was * has)

    weights, biases = (tuple(map(mean, whole[k], counted[k], total[k], count[k])) for k in range(2))
    return Perceptron(weights, biases, whole.inputs)


def match(
    whole: Perceptron,
    nets: Mapping[str, Perceptron],
    maps: Mapping[str, Pi],
    sweeps: int,
    price: float = 0.5,
) -> Matched:
    """Better maps for these networks, layer by layer: first each is matched with the global
    network, then there are `sweeps` sweeps. `price` is in mean squared lengths of a layer's
    neurons: to join a similar neuron costs about 0, an unrelated one about 1."""
    order = sorted(nets, key=lambda name: _content(nets[name], maps[name]))
    nets = {name: nets[name] for name in order}
    places_of: dict[str, list[Ints]] = {name: [] for name in nets}
    objective = []
    last = len(whole.biases[-1])
    for layer in range(len(whole.weights) - 1):
        final = layer == len(whole.weights) - 2
        anchor = _neurons(whole, layer, np.arange(whole.weights[layer].shape[1]), final).rows
        neurons = {}
        for name, net in nets.items():
            inputs = places_of[name][-1] if layer else net.inputs
            neurons[name] = _neurons(net, layer, inputs, final, whole.weights[layer].shape[1], last)
        start = {
            name: assigned(distances(own, anchor), maps[name][layer])
            for name, own in neurons.items()
        }
        ended, trace = match_layer(neurons, start, anchor.shape, sweeps, price)
        objective.append(trace)
        for name, places in ended.items():
            places_of[name].append(places)
    return Matched({name: tuple(places) for name, places in places_of.items()}, objective)


def match_layer(
    neurons: Mapping[str, Neurons],
    start: Mapping[str, Ints],
    shape: tuple[int, ...],
    sweeps: int,
    price: float,
) -> tuple[dict[str, Ints], list[list[float]]]:
    """Sweeps over one layer. `shape`: [global neurons, numbers in each]."""
    if not neurons:
        return {}, []
    places = dict(start)
    fee = price * float(np.mean([(own.rows**2).sum(1).mean() for own in neurons.values()]))
    trace: list[list[float]] = []
    for _ in range(sweeps):
        sums = _Sums(neurons, places, shape)
        fits = {name: sums.residual(own, places[name]) for name, own in neurons.items()}
        values, moved = [sum(fits.values()) + fee * sums.used], False
        for name in sorted(fits, key=lambda name: -fits[name]):
            own, was = neurons[name], places[name]
            sums.take(own, was, -1)
            costs, rows = sums.costs(own, fee), np.arange(len(was))
            places[name] = now = assigned(costs, was)
            sums.take(own, now, +1)
            values.append(values[-1] + float(costs[rows, now].sum() - costs[rows, was].sum()))
            moved = moved or not np.array_equal(now, was)
        trace.append(values)
        if not moved:
            break
    return places, trace


def assigned(costs: Floats, now: Ints) -> Ints:
    """The cheapest assignment of rows to different places; `now` where none is cheaper."""
    from scipy.optimize import linear_sum_assignment  # imported here: it takes half a second

    rows, places = linear_sum_assignment(costs)
    then, best = (float(costs[rows, at].sum()) for at in (now, places))
    return places if best < then - SAME * float(costs.max()) else now


def distances(own: Neurons, theirs: Floats) -> Floats:
    """|x_i - theta_j|^2 over the numbers that the client has: [local neurons, global neurons]."""
    seen = theirs[:, own.at]
    squares = (own.rows**2).sum(1)[:, None] + (seen**2).sum(1)
    return np.maximum(squares - 2 * own.rows @ seen.T, 0.0)


class _Sums:
    """Counts and sums of a layer's numbers, over all clients' neurons at their places."""

    def __init__(
        self, neurons: Mapping[str, Neurons], places: Mapping[str, Ints], shape: tuple[int, ...]
    ):
        self._count, self._total = np.zeros(shape), np.zeros(shape)
        self._users = np.zeros(shape[0])
        for name, own in neurons.items():
            self.take(own, places[name], +1)

    def take(self, own: Neurons, places: Ints, sign: int) -> None:
        """Add a client's neurons (sign +1), or remove them (-1)."""
        box: Any = np.ix_(places, own.at)
        self._count[box] += sign
        self._total[box] += sign * own.rows
        self._users[places] += sign

    def costs(self, own: Neurons, fee: float) -> Floats:
        """The increase of the objective if local neuron i joins global neuron j, with theta at the
        mean before and after: the sum over its numbers of c / (c + 1) (x - mean)^2, where c other
        clients have the number; the fee where nobody else uses j."""
        count = self._count[:, own.at]
        mean = self._total[:, own.at] / np.maximum(count, 1)
        weight = count / (count + 1)
        weighted = weight * mean
        squares = own.rows**2 @ weight.T + (weighted * mean).sum(1)
        costs = np.maximum(squares - 2 * own.rows @ weighted.T, 0.0)
        costs[:, self._users < 0.5] = fee
        return costs

    def residual(self, own: Neurons, places: Ints) -> float:
        """A client's squared distance from the mean."""
        box: Any = np.ix_(places, own.at)
        return float(((own.rows - self._total[box] / np.maximum(self._count[box], 1)) ** 2).sum())

    @property
    def used(self) -> int:
        """Global neurons in use."""
        return int((self._users > 0.5).sum())


def _neurons(
    net: Perceptron, layer: int, inputs: Ints, final: bool, wide: int = 0, outputs: int = 0
) -> Neurons:
    """A hidden layer's neurons: incoming weights, bias and, in the last layer, outgoing weights."""
    wide, outputs = wide or len(inputs), outputs or len(net.biases[-1])
    parts, at = [net.weights[layer], net.biases[layer][:, None]], [inputs, np.array([wide])]
    if final:
        parts.append(net.weights[layer + 1].T)
        at.append(wide + 1 + np.arange(outputs))
    return Neurons(np.concatenate(parts, 1), np.concatenate(at))


def _content(net: Perceptron, pi: Pi) -> bytes:
    """A sort key for networks, so that sums over them have the same bits whatever their names are.
    It matters: a neuron that shares with none costs the same at many places, and the last digit of
    a sum would decide between them."""
    return b"".join(a.tobytes() for a in (*net.weights, *net.biases, net.inputs, *pi))


def _places(inputs: Ints, pi: Pi, outputs: int) -> list[Ints]:
    return [inputs, *pi, np.arange(outputs)]


def _zeros(like: Perceptron) -> Perceptron:
    weights, biases = (tuple(np.zeros_like(a) for a in arrays) for arrays in like[:2])
    return Perceptron(weights, biases, like.inputs)
