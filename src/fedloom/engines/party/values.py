"""Values of the party engine's clients, positions of their rows, and their data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...core.errors import PlacementError
from ...core.placed import MISSING, AtClients, Batch, RowMap, Rows
from ...core.topology import Client, title
from ...data.placement import View
from ...fabric.kinds import Key
from ...models.dropout import row_keys
from ...models.task import Shapes, Task


class HostedValues(AtClients):
    """A value at each client hosted here."""

    def __init__(self, values: Mapping[Client, Any]):
        self._values = dict(values)

    def clients(self) -> list[Client]:
        return list(self._values)

    def raw(self, client: Client, user: str) -> Any:
        """The stored value: perhaps MISSING, or pending."""
        if client not in self._values:
            raise PlacementError(f"{user} at {title(client)}: the value lives elsewhere")
        return self._values[client]

    def get(self, client: Client, user: str) -> Any:
        value = self.raw(client, user)
        if not isinstance(value, Pending):
            return value
        if not value.settled:
            raise PlacementError(
                f"{user} uses the kept state of {title(client)} before its hub has confirmed "
                "it: make a downward move first"
            )
        return value.value

    def split_pending(self) -> tuple[dict[Client, Any], dict[Client, Pending]]:
        """All values, with pending ones taken as confirmed; and those pending."""
        undecided = {c: v for c, v in self._values.items() if isinstance(v, Pending)}
        undecided = {client: value for client, value in undecided.items() if not value.settled}
        raw = {c: undecided[c].new if c in undecided else self.get(c, "read") for c in self._values}
        return {client: value for client, value in raw.items() if value is not MISSING}, undecided


class Slots(RowMap):
    """Positions of each known client's rows in a minibatch: [b], or [Q, b]; -1 is padding."""

    def __init__(self, size: int, slots: Mapping[Client, Tensor]):
        self.size = size
        self.slots = slots

    def has_rows(self, client: Client) -> bool:
        return bool((self.slots[client] >= 0).any())

    def real(self, client: Client) -> Tensor:
        """Positions of the client's rows, without padding."""
        return self.slots[client][self.slots[client] >= 0]

    def padded(self, client: Client, rows: Rows) -> Rows:
        """Rows with padding, in the layout of the client's slots."""
        real = self.slots[client] >= 0
        value = rows.value.new_zeros(*real.shape, *rows.value.shape[1:])
        mask = torch.zeros_like(real)
        value[real], mask[real] = rows.value, rows.mask
        return Rows(value, mask)


class Pending:
    """State kept by a client that its hub has yet to confirm. `new` counts if the hub accepted the
    move `key`, or a later one of that round; else `old` counts."""

    def __init__(self, new: Any, old: Any, key: Key):
        self.new, self.old, self.key = new, old, key
        self.value: Any = None
        self.settled = False

    def settle(self, receipt: Key | None) -> None:
        is_accepted = (
            receipt is not None
            and receipt.round == self.key.round
            and receipt.move >= self.key.move
        )
        self.value, self.settled = (self.new if is_accepted else self.old), True


class ClientData:
    """The rows of all known clients, and the data of those hosted here."""

    def __init__(self, view: View, task: Task, shapes: Shapes, device: torch.device):
        self._shapes, self._device = shapes, device
        self._index: dict[Client, Tensor] = {}
        self._owner: dict[str, Tensor] = {}
        self._place: dict[Client, int] = {}
        for silo, names in view.clients.items():
            owner = torch.full((view.size + view.validation,), -1)
            index = torch.full((view.size + view.validation,), -1)
            for place, client in enumerate(Client(silo, name) for name in names):
                rows = view.rows[client]
                owner[rows], index[rows] = place, torch.arange(len(rows))
                self._place[client], self._index[client] = place, index
            self._owner[silo] = owner
        self._x = {client: self._features(client, x) for client, x in view.x.items()}
        self._y = {
            client: None if y is None else self._labels(task, client, y)
            for client, y in view.y.items()
        }

    def _features(self, client: Client, x: Tensor) -> Tensor:
        dtype = self._shapes.features[client.silo][1]
        x = x if len(x) else self._shapes.made_up(client.silo, 1)[0]
        return x.to(dtype=dtype, device=self._device)

    def _labels(self, task: Task, client: Client, y: Tensor) -> Tensor:
        made_up = self._shapes.made_up(client.silo, 1)[1]
        labels = task.loss.labels(y, self._shapes.dtype) if len(y) else made_up
        return labels.to(self._device)

    def data(self, client: Client) -> tuple[Tensor, Tensor | None]:
        """All of a client's features and labels."""
        return self._x[client], self._y[client]

    def features(self, client: Client, row: Tensor) -> Tensor:
        """The features of one row."""
        return self._x[client][self._index[client][row].to(self._device)]

    def among(self, client: Client, ids: Tensor) -> Tensor:
        """Those of the given rows that the client owns."""
        flat = ids.flatten()
        return flat[self._owner[client.silo][flat] == self._place[client]]

    def slots(self, client: Client, ids: Tensor) -> Tensor:
        """Positions of the client's rows, in at least one column: no batch is empty."""
        owned = (self._owner[client.silo][ids] == self._place[client]).reshape(-1, ids.shape[-1])
        width = max(1, int(owned.sum(1).max()))
        slots = torch.full((len(owned), width), -1)
        for step, owned_in_step in enumerate(owned):
            positions = owned_in_step.nonzero()[:, 0]
            slots[step, : len(positions)] = positions + step * ids.shape[-1]
        return slots.reshape(*ids.shape[:-1], width).to(self._device)

    def batch(self, client: Client, ids: Tensor, slots: Tensor, dropout: int | None) -> Batch:
        """The rows in these slots; padding repeats the client's first row. `dropout`: what masks
        are named by, if there are any."""
        mask = slots >= 0
        numbers = ids.flatten()[slots.clamp(min=0).cpu()]
        keys = None if dropout is None else row_keys(dropout, numbers).to(self._device)
        rows = self._index[client][numbers].to(self._device)
        rows = torch.where(mask, rows, 0)
        y = self._y[client]
        return Batch(self._x[client][rows], None if y is None else y[rows], mask, keys=keys)


def with_weight(value: Any, weight: Tensor, dtype: torch.dtype) -> tuple[Any, Tensor]:
    """The payload for a weighted mean."""
    return value, weight.to(dtype)
