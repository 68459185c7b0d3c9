"""Matched averaging: perceptrons of different widths and inputs put together neuron by neuron.

A client's network relates to the global one by a map Pi_m: for every hidden layer, the number of
the global neuron that each of its neurons stands for (no two for the same). Inputs and outputs have
fixed places. Layer by layer, from the inputs, `match` looks for maps with a low

    sum_m sum_i |x_{m,i} - theta_{Pi_m(i)}|^2  +  price * (global neurons in use)

where x_{m,i} is a neuron: its incoming weights and its bias; in the last hidden layer also its
outgoing weights, whose other ends, the outputs, are the same everywhere. With one hidden layer the
sum is the whole squared distance between the networks (output biases do not depend on Pi).

Only what a client has is compared: a network that lacks an input lacks those weights. Global
neurons that a client does not use are matched with dummies of zero weight, which enter no mean; the
price is what a neuron pays to be matched with nothing but dummies. Without it every neuron would
keep a place of its own as long as there are any.

A sweep visits every client, the worst fitting first (so that names and order do not matter), and
gives it the best map for the others' as they are, with theta minimised out: one assignment problem
(Hungarian algorithm). The objective never rises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Pi = tuple[Ints, ...]  # for each hidden layer, the global neuron of each local one

SAME = 1e-12  # a map is given up for a better one only: by this part of the largest cost


class Perceptron(NamedTuple):
    """Weights [out, in] and biases [out] of each layer; `inputs`: the places of its inputs among
    the global ones."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    inputs: Ints


class Neurons(NamedTuple):
    """One layer's neurons as rows; `at`: the places of their numbers in a global neuron's row."""

    rows: Floats
    at: Ints


@dataclass(frozen=True)
class Matched:
    """The maps, and the objective of every hidden layer: before the sweeps and after each visit,
    a list for each sweep."""

    maps: dict[str, Pi]
    objective: list[list[list[float]]]


def identity(widths: Sequence[int]) -> Pi:
    """A local neuron stands for the global one of the same number."""
    return tuple(np.arange(width) for width in widths)


def project(whole: Perceptron, inputs: Ints, pi: Pi) -> Perceptron:
    """Pi_m theta_0: the client's part of the global network."""
    places = _places(inputs, pi, len(whole.biases[-1]))
    weights = tuple(w[np.ix_(places[i + 1], places[i])] for i, w in enumerate(whole.weights))
    return Perceptron(weights, tuple(b[places[i + 1]] for i, b in enumerate(whole.biases)), inputs)


def average(
    whole: Perceptron,
    nets: Mapping[str, Perceptron],
    maps: Mapping[str, Pi],
    inputs: Mapping[str, Ints],
) -> Perceptron:
    """theta_0 for given maps: the mean of every number over the networks that came and have it.
    What only others have (`maps` and `inputs` tell of everyone) stays; what nobody has is zero."""
    held, total, count = _zeros(whole), _zeros(whole), _zeros(whole)
    for name, pi in maps.items():
        places = _places(inputs[name], pi, len(whole.biases[-1]))
        for i in range(len(whole.weights)):
            box = np.ix_(places[i + 1], places[i])
            held.weights[i][box], held.biases[i][places[i + 1]] = 1, 1
            if name in nets:
                total.weights[i][box] += nets[name].weights[i]
                total.biases[i][places[i + 1]] += nets[name].biases[i]
                count.weights[i][box] += 1
                count.biases[i][places[i + 1]] += 1

    def one(was: Floats, some: Floats, sums: Floats, counts: Floats) -> Floats:
        return np.where(counts > 0, sums / np.maximum(counts, 1), was * some)

    weights, biases = (tuple(map(one, whole[k], held[k], total[k], count[k])) for k in range(2))
    return Perceptron(weights, biases, whole.inputs)


def match(
    whole: Perceptron,
    nets: Mapping[str, Perceptron],
    maps: Mapping[str, Pi],
    sweeps: int,
    price: float = 0.5,
) -> Matched:
    """Better maps for these networks, layer by layer: first everyone's against the global network
    as it stands, then `sweeps` sweeps. `price` is in mean squared lengths of a layer's neurons:
    to join one near copy costs about 0, one unrelated neuron about 1."""
    order = sorted(nets, key=lambda name: _content(nets[name], maps[name]))
    nets = {name: nets[name] for name in order}
    found: dict[str, list[Ints]] = {name: [] for name in nets}
    objective = []
    last = len(whole.biases[-1])
    for layer in range(len(whole.weights) - 1):
        final = layer == len(whole.weights) - 2
        anchor = _neurons(whole, layer, np.arange(whole.weights[layer].shape[1]), final).rows
        each = {}
        for name, net in nets.items():
            inputs = found[name][-1] if layer else net.inputs
            each[name] = _neurons(net, layer, inputs, final, whole.weights[layer].shape[1], last)
        start = {
            name: assigned(distances(mine, anchor), maps[name][layer])
            for name, mine in each.items()
        }
        ended, trace = match_layer(each, start, anchor.shape, sweeps, price)
        objective.append(trace)
        for name, places in ended.items():
            found[name].append(places)
    return Matched({name: tuple(places) for name, places in found.items()}, objective)


def match_layer(
    each: Mapping[str, Neurons],
    start: Mapping[str, Ints],
    shape: tuple[int, ...],
    sweeps: int,
    price: float,
) -> tuple[dict[str, Ints], list[list[float]]]:
    """Sweeps over one layer, of [global neurons, numbers in each]."""
    if not each:
        return {}, []
    found = dict(start)
    fee = price * float(np.mean([(mine.rows**2).sum(1).mean() for mine in each.values()]))
    trace: list[list[float]] = []
    for _ in range(sweeps):
        sums = _Sums(each, found, shape)
        fits = {name: sums.residual(mine, found[name]) for name, mine in each.items()}
        values, moved = [sum(fits.values()) + fee * sums.used], False
        for name in sorted(fits, key=lambda name: -fits[name]):
            mine, was = each[name], found[name]
            sums.take(mine, was, -1)
            costs, rows = sums.costs(mine, fee), np.arange(len(was))
            found[name] = now = assigned(costs, was)
            sums.take(mine, now, +1)
            values.append(values[-1] + float(costs[rows, now].sum() - costs[rows, was].sum()))
            moved = moved or not np.array_equal(now, was)
        trace.append(values)
        if not moved:
            break
    return found, trace


def assigned(costs: Floats, now: Ints) -> Ints:
    """The cheapest places for the rows, no two in one; `now` where none are cheaper."""
    from scipy.optimize import linear_sum_assignment  # half a second, which most runs save

    rows, places = linear_sum_assignment(costs)
    then, best = (float(costs[rows, at].sum()) for at in (now, places))
    return places if best < then - SAME * float(costs.max()) else now


def distances(mine: Neurons, theirs: Floats) -> Floats:
    """|x_i - theta_j|^2 over what the client has: [local neurons, global neurons]."""
    seen = theirs[:, mine.at]
    squares = (mine.rows**2).sum(1)[:, None] + (seen**2).sum(1)
    return np.maximum(squares - 2 * mine.rows @ seen.T, 0.0)


class _Sums:
    """Of one layer's neurons at their places: how many have each number, and the sum of them."""

    def __init__(
        self, each: Mapping[str, Neurons], found: Mapping[str, Ints], shape: tuple[int, ...]
    ):
        self._count, self._total = np.zeros(shape), np.zeros(shape)
        self._users = np.zeros(shape[0])
        for name, mine in each.items():
            self.take(mine, found[name], +1)

    def take(self, mine: Neurons, places: Ints, sign: int) -> None:
        """Put a client's neurons in, or take them out."""
        box: Any = np.ix_(places, mine.at)
        self._count[box] += sign
        self._total[box] += sign * mine.rows
        self._users[places] += sign

    def costs(self, mine: Neurons, fee: float) -> Floats:
        """What the objective grows by if local neuron i joins global neuron j, with theta at the
        mean before and after: sum over its numbers of c / (c + 1) (x - mean)^2, c others having
        it; the fee where j is used by nobody else."""
        count = self._count[:, mine.at]
        mean = self._total[:, mine.at] / np.maximum(count, 1)
        weight = count / (count + 1)
        weighted = weight * mean
        squares = mine.rows**2 @ weight.T + (weighted * mean).sum(1)
        costs = np.maximum(squares - 2 * mine.rows @ weighted.T, 0.0)
        costs[:, self._users < 0.5] = fee
        return costs

    def residual(self, mine: Neurons, places: Ints) -> float:
        """The client's squared distance from the mean."""
        box: Any = np.ix_(places, mine.at)
        return float(((mine.rows - self._total[box] / np.maximum(self._count[box], 1)) ** 2).sum())

    @property
    def used(self) -> int:
        """Global neurons in use."""
        return int((self._users > 0.5).sum())


def _neurons(
    net: Perceptron, layer: int, inputs: Ints, final: bool, wide: int = 0, outputs: int = 0
) -> Neurons:
    """A hidden layer's neurons: incoming weights, bias and, in the last one, outgoing weights."""
    wide, outputs = wide or len(inputs), outputs or len(net.biases[-1])
    parts, at = [net.weights[layer], net.biases[layer][:, None]], [inputs, np.array([wide])]
    if final:
        parts.append(net.weights[layer + 1].T)
        at.append(wide + 1 + np.arange(outputs))
    return Neurons(np.concatenate(parts, 1), np.concatenate(at))


def _content(net: Perceptron, pi: Pi) -> bytes:
    """What to order networks by, so that sums over them have the same bits whatever their names
    are: neurons with a place of their own cost the same anywhere, and a last digit elsewhere would
    decide where they go."""
    return b"".join(a.tobytes() for a in (*net.weights, *net.biases, net.inputs, *pi))


def _places(inputs: Ints, pi: Pi, outputs: int) -> list[Ints]:
    return [inputs, *pi, np.arange(outputs)]


def _zeros(like: Perceptron) -> Perceptron:
    weights, biases = (tuple(np.zeros_like(a) for a in arrays) for arrays in like[:2])
    return Perceptron(weights, biases, like.inputs)
