"""Which client of which silo holds which rows.

`Placement` is what a simulation knows: every silo's rows in one canonical order (sorted by id), and
the owner of each row, independently in every silo. A party knows only its `View`: a client its own
rows, a hub which rows each of its clients holds, everyone how many rows are common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.checked import checked
from ..core.errors import DataError, nearest, reason
from ..core.settings import shown
from ..core.topology import Client, Party, Topology, known_to, title

Ids = npt.NDArray[Any]


@dataclass(frozen=True)
class Shard:
    """The rows of one client: ids, features (a row each), and labels where it has them."""

    ids: Any
    x: Any
    y: Any = None

    def __repr__(self) -> str:
        return f"<Shard of {len(self.ids)} rows>"


@dataclass(frozen=True)
class View:
    """The part of a placement that some parties know."""

    silos: tuple[str, ...]
    server: bool
    clients: Mapping[str, tuple[str, ...]]  # names, of the silos these parties belong to
    size: int  # how many rows are common, and trained on
    rows: Mapping[Client, Tensor]  # canonical row numbers, where known
    x: Mapping[Client, Tensor]  # features, of these parties themselves
    y: Mapping[Client, Tensor | None]
    validation: int = 0  # how many rows come after these, for validation only


@dataclass(frozen=True)
class Placement:
    """All rows of all silos. Build it with `Placement.of`."""

    topology: Topology
    ids: Ids
    owner: Mapping[str, Tensor]  # silo -> [M] index of each row's client in the silo's order
    x: Mapping[str, Tensor]  # silo -> [M, ...]
    y: Mapping[str, Tensor | None]  # silo -> [M, ...] or None where the silo has no labels
    validation: int = 0  # of these rows, how many at the end are in no minibatch of a round

    @staticmethod
    def of(shards: Mapping[str, Mapping[str, Shard]], server: bool = False) -> Placement:
        """Check and join the clients' shards: {silo: {client: Shard}}."""
        form = "Placement.of: {silo: {client: Shard}} is expected"
        if not isinstance(shards, Mapping):
            raise DataError(f"{form}, not {shown(shards)}")
        for silo, clients in shards.items():
            if not isinstance(clients, Mapping):
                raise DataError(f"{form}; of silo {silo}, there is {shown(clients)}")
        shards = {
            str(silo): {str(name): shard for name, shard in clients.items()}
            for silo, clients in shards.items()
        }
        topology = Topology({silo: tuple(clients) for silo, clients in shards.items()}, server)
        joined = {silo: _join(silo, clients) for silo, clients in shards.items()}
        silos = topology.silos
        ids = joined[silos[0]].ids
        if not len(ids):
            raise DataError(f"silo {silos[0]} holds no rows")
        for silo in silos[1:]:
            _same_ids(silos[0], ids, silo, joined[silo].ids)
        labelled = [silo for silo in silos if joined[silo].y is not None]
        for silo in labelled[1:]:
            _same_labels(labelled[0], joined[labelled[0]].y, silo, joined[silo].y)
        return Placement(
            topology,
            ids,
            {silo: joined[silo].owner for silo in silos},
            {silo: joined[silo].x for silo in silos},
            {silo: joined[silo].y for silo in silos},
        )

    def pooled(self) -> Placement:
        """The same rows, with one client in each silo, which holds them all."""
        topology = Topology(dict.fromkeys(self.topology.silos, ("all",)), self.topology.server)
        owner = {silo: torch.zeros_like(owners) for silo, owners in self.owner.items()}
        return replace(self, topology=topology, owner=owner)

    def with_server(self) -> Placement:
        """The same rows, with a server, which holds none."""
        return replace(self, topology=replace(self.topology, server=True))

    def followed_by(self, validation: Placement | None) -> Placement:
        """What an engine needs of both: these rows, and validation rows after them."""
        if validation is None:
            return self
        if self.topology.clients != validation.topology.clients:
            raise DataError("validation rows must be those of the same silos and clients")

        def both(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {silo: torch.cat([rows, second[silo]]) for silo, rows in first.items()}

        labels = {silo: y for silo, y in self.y.items() if y is not None}
        y: dict[str, Tensor | None] = dict.fromkeys(self.y)
        y |= both(labels, {silo: y for silo, y in validation.y.items() if y is not None})
        return Placement(
            self.topology,
            np.concatenate([self.ids, validation.ids]),
            both(self.owner, validation.owner),
            both(self.x, validation.x),
            y,
            validation.size,
        )

    def __repr__(self) -> str:
        """Numbers only: a notebook must not show personal data."""
        silos = ", ".join(f"{silo} {len(names)}" for silo, names in self.topology.clients.items())
        return f"<{self.size} rows; clients: {silos}>"

    @property
    def size(self) -> int:
        """M, the number of common rows that are trained on."""
        return len(self.ids) - self.validation

    @property
    def labelled(self) -> tuple[str, ...]:
        """The silos with labels."""
        return tuple(silo for silo, y in self.y.items() if y is not None)

    @checked()
    def only(self, silos: Sequence[str]) -> Placement:
        """The same rows, of some of the silos."""
        for silo in silos:
            self._known(silo)
        return Placement(
            Topology({j: self.topology.clients[j] for j in silos}, self.topology.server),
            self.ids,
            {j: self.owner[j] for j in silos},
            {j: self.x[j] for j in silos},
            {j: self.y[j] for j in silos},
            self.validation,
        )

    def take(self, numbers: Tensor) -> Placement:
        """Some of the rows, by their numbers in the canonical order, with the same clients."""
        numbers = numbers.sort().values
        return replace(
            self,
            ids=self.ids[numbers.numpy()],
            owner={silo: owner[numbers] for silo, owner in self.owner.items()},
            x={silo: x[numbers] for silo, x in self.x.items()},
            y={silo: None if y is None else y[numbers] for silo, y in self.y.items()},
        )

    def joined(self, other: Placement) -> Placement:
        """These rows and others of the same silos and clients."""
        if self.topology.clients != other.topology.clients:
            raise DataError("rows of different silos or clients cannot be joined")
        ids = np.concatenate([self.ids, other.ids])
        order = torch.from_numpy(np.argsort(ids, kind="stable"))

        def both(first: Tensor, second: Tensor) -> Tensor:
            return torch.cat([first, second])[order]

        y: dict[str, Tensor | None] = {}
        for silo, labels in self.y.items():
            other_labels = other.y[silo]
            y[silo] = None if labels is None or other_labels is None else both(labels, other_labels)
        return replace(
            self,
            ids=ids[order.numpy()],
            owner={silo: both(owner, other.owner[silo]) for silo, owner in self.owner.items()},
            x={silo: both(x, other.x[silo]) for silo, x in self.x.items()},
            y=y,
        )

    def labels(self) -> Tensor:
        """Labels in canonical order, from the first silo that has them."""
        for y in self.y.values():
            if y is not None:
                return y
        raise DataError("no silo holds labels")

    @checked()
    def held(self, silo: str) -> dict[Client, Tensor]:
        """The rows of each client of a silo, by their numbers in the canonical order."""
        self._known(silo)
        owner = self.owner[silo]
        counts = torch.bincount(owner, minlength=len(self.topology.clients[silo])).tolist()
        rows = owner.argsort(stable=True).split(counts)
        return dict(zip(self.topology.of(silo), rows, strict=True))

    def _known(self, silo: str) -> None:
        if silo not in self.topology.silos:
            raise DataError(f"there is no silo {silo!r}{nearest(silo, self.topology.silos)}")

    def shards(self) -> dict[str, dict[str, Shard]]:
        """The inverse of `of`: the shard of each client."""
        shards: dict[str, dict[str, Shard]] = {}
        for silo in self.topology.silos:
            x, y = self.x[silo], self.y[silo]
            shards[silo] = {
                client.name: Shard(self.ids[rows.numpy()], x[rows], None if y is None else y[rows])
                for client, rows in self.held(silo).items()
            }
        return shards

    def view(self, parties: Sequence[Party]) -> View:
        """The view of these parties together."""
        known = known_to(self.topology, parties)
        rows: dict[Client, Tensor] = {}
        for silo, names in known.items():
            theirs = set(names)
            rows |= {c: numbers for c, numbers in self.held(silo).items() if c.name in theirs}
        own = [party for party in parties if isinstance(party, Client)]
        x = {client: self.x[client.silo][rows[client]] for client in own}
        y: dict[Client, Tensor | None] = {}
        for client in own:
            labels = self.y[client.silo]
            y[client] = None if labels is None else labels[rows[client]]
        server = self.topology.server
        return View(self.topology.silos, server, known, self.size, rows, x, y, self.validation)


@dataclass(frozen=True)
class _SiloRows:
    """All rows of a silo, sorted by id."""

    ids: Ids
    owner: Tensor
    x: Tensor
    y: Tensor | None


def _ids(values: Any, where: str) -> Ids:
    """Ids as whole numbers or text."""
    ids = np.asarray(values)
    if ids.ndim != 1:
        raise DataError(f"{where}: ids must be a list, one a row")
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    if ids.dtype.kind in "OU" and all(isinstance(id, str) for id in ids.tolist()):
        return ids.astype(str)
    if not len(ids):
        return ids.astype(np.int64)
    raise DataError(f"{where}: ids must be whole numbers or text, and none may be missing")


def _tensor(what: str, values: Any, rows: int, where: str) -> Tensor:
    try:
        values = torch.as_tensor(np.asarray(values) if isinstance(values, list) else values)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise DataError(f"{where}: {what} are not numbers ({reason(problem)})") from None
    if values.ndim < 1 or len(values) != rows:
        got = len(values) if values.ndim else "a single number"
        raise DataError(f"{where}: {rows} ids, {got} rows of {what}")
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        bad = (~torch.isfinite(values)).reshape(rows, -1).any(1).sum()
        raise DataError(f"{where}: NaN or infinity in the {what} of {int(bad)} rows")
    return values


def as_rows(what: str, values: Any) -> Tensor:
    """Numbers, a row each."""
    try:
        tensor = torch.as_tensor(np.asarray(values) if isinstance(values, list) else values)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.tensor(0)
    if not tensor.ndim:
        raise DataError(f"{what}: numbers are expected, a row each, not {shown(values)}")
    return tensor


def _features(shard: Shard, rows: int, where: str) -> Tensor:
    if shard.x is None:
        raise DataError(f"{where}: {rows} ids, but no features")
    x = _tensor("features", shard.x, rows, where)
    if x.ndim < 2:
        raise DataError(f"{where}: features must have columns: shape [rows, columns], or images")
    return x


def _labels(shard: Shard, rows: int, where: str) -> Tensor:
    y = _tensor("labels", shard.y, rows, where)
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _join(silo: str, shards: Mapping[str, Shard]) -> _SiloRows:
    ids: list[Ids] = []
    x: list[Tensor] = []
    y: list[Tensor] = []
    owner: list[Ids] = []
    for place, (name, shard) in enumerate(shards.items()):
        where = title(Client(silo, name))
        if not isinstance(shard, Shard):
            raise DataError(f"{where}: a Shard is expected, not {type(shard).__name__}")
        own_ids = _ids(shard.ids, where)
        repeated = len(own_ids) - len(np.unique(own_ids))
        if repeated:
            raise DataError(f"{where}: {repeated} ids occur more than once")
        if not len(own_ids):  # a client without rows is allowed: it takes no step
            if shard.x is not None and len(shard.x):
                raise DataError(f"{where}: no ids, {len(shard.x)} rows of features")
            continue
        ids.append(own_ids)
        owner.append(np.full(len(own_ids), place))
        x.append(_features(shard, len(own_ids), where))
        if (x[-1].shape[1:], x[-1].dtype) != (x[0].shape[1:], x[0].dtype):
            raise DataError(f"{where}: features differ in shape or type from the silo's others")
        if shard.y is not None:
            y.append(_labels(shard, len(own_ids), where))
            if y[-1].shape[1:] != y[0].shape[1:]:
                raise DataError(f"{where}: labels differ in shape from the silo's others")
    if not ids:
        raise DataError(f"silo {silo} holds no rows")
    if len({part.dtype.kind for part in ids}) > 1:
        raise DataError(f"silo {silo}: ids are numbers at some clients and text at others")
    if y and len(y) != len(x):
        raise DataError(f"silo {silo}: some clients have labels and some have none")
    all_ids, owners = np.concatenate(ids), np.concatenate(owner)
    order = np.argsort(all_ids, kind="stable")
    all_ids, owners = all_ids[order], owners[order]
    twice = np.flatnonzero(all_ids[1:] == all_ids[:-1])
    if len(twice):
        names = list(shards)
        pairs = {(names[owners[i]], names[owners[i + 1]]) for i in twice}
        between = ", ".join(f"{a} and {b}" for a, b in sorted(pairs)[:5])
        raise DataError(f"silo {silo}: {len(twice)} ids are held twice, by clients {between}")
    by_id = torch.from_numpy(order)
    return _SiloRows(
        all_ids,
        torch.from_numpy(owners.astype(np.int64)),
        torch.cat(x)[by_id],
        torch.cat(y)[by_id] if y else None,
    )


def _same_ids(first: str, ids: Ids, other: str, others: Ids) -> None:
    if ids.dtype.kind != others.dtype.kind:
        raise DataError(f"ids are of different types in silos {first} and {other}")
    for silo, own_ids, there, their_ids in (
        (first, ids, other, others),
        (other, others, first, ids),
    ):
        lacking = int(np.isin(their_ids, own_ids, invert=True).sum())
        if lacking:
            raise DataError(
                f"silo {silo} lacks {lacking} of the {len(their_ids)} ids that silo {there} holds: "
                "keep the ids that all silos have"
            )


def _same_labels(first: str, labels: Tensor | None, other: str, others: Tensor | None) -> None:
    assert labels is not None
    assert others is not None
    if labels.shape != others.shape:
        raise DataError(f"labels have different shapes in silos {first} and {other}")
    near = torch.isclose(labels.double(), others.double(), rtol=1e-6, atol=0.0)
    differ = int((~near).reshape(len(labels), -1).any(1).sum())
    if differ:
        raise DataError(f"labels disagree between silos {first} and {other} on {differ} rows")
