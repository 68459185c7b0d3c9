"""What HyFEM's hub does with models: give each client its own part, and put the parts together.

Pure functions of the global model, everyone's views and everyone's map Pi_m.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.errors import DataError, SettingError, nearest
from ...core.rng import Ints
from ...data.placement import Placement
from ...models.matching import average, identity, match, project
from ...models.multiview import columns, hidden_widths, layers, perceptron, view_of, views_of
from ...models.task import Theta

Lists = Mapping[str, Sequence[int]]
Maps = dict[str, tuple[Tensor, ...]]  # client -> Pi_m: of each hidden layer, the global neurons


class Server(NamedTuple):
    """The global model (extractors and theta_0), and everyone's place in it."""

    theta: Theta
    maps: Maps


def theta_of(server: Server) -> Theta:
    return server.theta


def maps_of(server: Server) -> Maps:
    return server.maps


def first_maps(theta: Theta, names: Sequence[str], widths: Lists) -> Maps:
    """Neuron i of every client is neuron i of theta_0."""
    most = hidden_widths(theta.block)
    return {name: _tensors(identity(widths.get(name, most)), theta) for name in names}


def own_model(theta: Theta, views: Sequence[int], pi: tuple[Tensor, ...]) -> Theta:
    """A client's: theta_d of its views, and Pi_m theta_0."""
    block = theta.block
    all_views = perceptron(block, columns(block, views_of(block)))
    own = project(all_views, columns(block, sorted(views)), _arrays(pi))
    extractors = {name: a for name, a in block.items() if view_of(name) in views}
    return Theta(extractors | layers(own, block["layers.0.bias"]), {})


def merge(
    server: Server, updates: Mapping[str, Theta], views: Lists, sweeps: int, price: float
) -> Server:
    """Extractors are averaged view by view, over those who hold the view. Perceptrons are matched,
    and averaged neuron by neuron. Absent clients keep their places."""
    block = server.theta.block
    inputs = {name: columns(block, sorted(views[name])) for name in server.maps}
    before = perceptron(block, columns(block, views_of(block)))
    nets = {name: perceptron(update.block, inputs[name]) for name, update in updates.items()}
    places = {name: _arrays(pi) for name, pi in server.maps.items()}
    if sweeps:  # Global Matching Updates
        places |= match(before, nets, places, sweeps, price).maps
    after = average(before, nets, places, inputs)
    extractors = {  # Global Aggregation of Feature Extractors
        name: _mean([update.block[name] for update in updates.values() if name in update.block], a)
        for name, a in block.items()
        if view_of(name) is not None
    }
    theta = Theta(extractors | layers(after, block["layers.0.bias"]), {})
    return Server(theta, {name: _tensors(pi, theta) for name, pi in places.items()})


def _mean(tensors: list[Tensor], otherwise: Tensor) -> Tensor:
    """In double precision; `otherwise` where there is no update."""
    return torch.stack(tensors).double().mean(0).to(otherwise) if tensors else otherwise


def _arrays(pi: tuple[Tensor, ...]) -> tuple[Ints, ...]:
    return tuple(places.cpu().numpy() for places in pi)


def _tensors(pi: tuple[Ints, ...], like: Theta) -> tuple[Tensor, ...]:
    device = like.block["layers.0.bias"].device
    return tuple(torch.from_numpy(places).to(device) for places in pi)


def without_views(placement: Placement, views: Lists) -> Placement:
    """Zeros in the views that `views` does not give a client."""
    x = {silo: features.clone() for silo, features in placement.x.items()}
    for silo, features in x.items():
        for client, rows in placement.held(silo).items():
            for view in set(range(features.shape[1])) - set(views.get(client.name, ())):
                features[rows, view] = 0
    return replace(placement, x=x)


# What is refused


def check_zeros(placement: Placement, views: Lists, count: int) -> None:
    """Views that a client lacks must be zeros in its rows."""
    (silo,) = placement.topology.silos
    for client, rows in placement.held(silo).items():
        lacking = sorted(set(range(count)) - set(views[client.name]))
        hit = (placement.x[silo][rows][:, lacking] != 0).transpose(0, 1).flatten(1).any(1)
        for view, wrong in zip(lacking, hit.tolist(), strict=True):
            if wrong:
                raise DataError(
                    f"client {client} has numbers in view {view}, which `views` does not give it: "
                    "add the view there, or make it zeros"
                )


def check_widths(widths: Lists, clients: Sequence[str], limits: Sequence[int]) -> None:
    """Of known clients, for every hidden layer, from 1 to that of the whole model."""
    for name, own_widths in widths.items():
        if name not in clients:
            raise SettingError(f"widths: there is no client {name!r}{nearest(name, clients)}")
        if len(own_widths) != len(limits):
            raise SettingError(
                f"widths: {name!r} has {len(own_widths)}, the model {len(limits)} layers"
            )
        for width, limit in zip(own_widths, limits, strict=True):
            if not isinstance(width, int) or not 1 <= width <= limit:
                raise SettingError(
                    f"widths: {name!r} has {width!r}; it must be from 1 to {limit}, the model's own"
                )
