"""Before scores: all blocks are of one version, and everyone knows which rows are available where.

The asking party names rows by keyed hashes of their ids. Hubs and clients answer which of them they
have. The asking party decides whether to go on.

    hub <-> hub, server        version  run, round and a digest of the block
    asking client -> hub       ids      hashes of the ids
    asking hub -> hubs         ids
    hub -> its clients         ids      and which preparation of columns is the silo's
    client -> hub              held     which of them it has
    hub -> asking hub          there    which of them its silo has
    asking hub -> its client   there    of all silos
    asking client -> hub -> hubs, server, clients    go
    ... the messages of the algorithm's `predict`, so many rows at a time
    asking hub -> its client   scores
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.errors import DataError
from ...core.topology import SERVER, Client, Party, Topology, known_to, title
from ...data.placement import View
from ...fabric.permits import PayloadForm, Route, form_of
from ...models.task import Shapes
from ..agreement.messages import JSON, packed, unpacked
from ..agreement.own_tables import HASH
from ..channel import Channel
from ..connect import listeners
from ..log import Log
from ..party.finished import FinishedRun, version_of
from .lookup import OwnRows

MOVES = {"predict-version": 1, "predict-ids": 2, "predict-held": 3, "predict-there": 4}
MOVES |= {"predict-go": 5, "predict-scores": 1}
FLAGS = torch.zeros(1, dtype=torch.uint8)
IDS = {"ids": torch.zeros(1, HASH, dtype=torch.uint8), "told": JSON}


@dataclass(frozen=True)
class OwnInput:
    """What a party read from disk: its part of the model, how its silo prepares columns, a client's
    rows; of the asking party, hashes of ids and whether a silo may be left out of a score."""

    finished: FinishedRun | None
    preparation: str = ""
    rows: OwnRows | None = None
    ids: Tensor | None = None
    without: bool = False


class AvailableRows(NamedTuple):
    """`view`: what this party knows of the rows. `there`, in the asking silo: who has which,
    [rows, silos]."""

    view: View
    there: Tensor
    without: bool
    version: str


@dataclass(frozen=True)
class Availability:
    """One party's part in finding out who has which rows."""

    me: Party
    asker: Party
    topology: Topology
    channel: Channel
    own: OwnInput
    log: Log

    def find(self) -> AvailableRows:
        if isinstance(self.me, Client):
            return self._as_client(self.me)
        return self._as_server() if self.me == SERVER else self._as_hub(self.me)

    @property
    def home(self) -> str:
        return home_of(self.asker)

    def _as_client(self, me: Client) -> AvailableRows:
        channel, hub, own = self.channel, me.silo, self.own
        if own.ids is not None:
            channel.send("predict-ids", hub, {"ids": own.ids, "told": packed(None)})
        query = channel.receive("predict-ids", hub)
        hub_facts = checked(query["told"], preparation=str, round=int, version=str)
        self._same_as_hub(hub_facts, hub)
        assert own.rows is not None
        held_rows, x = own.rows.find(query["ids"])
        channel.send("predict-held", hub, {"held": held_rows})
        there = FLAGS
        if own.ids is not None:
            there = channel.receive("predict-there", hub)["there"]
            channel.send(
                "predict-go", hub, {"told": packed(self._decide(there, hub_facts["version"]))}
            )
        return self._available(
            self._receive_decision(hub), {me: held_rows.nonzero()[:, 0]}, {me: x}, there
        )

    def _same_as_hub(self, hub_facts: Any, hub: str) -> None:
        if hub_facts["preparation"] != self.own.preparation:
            raise DataError(
                f"{title(self.me)}: its columns are prepared otherwise than those of {title(hub)}"
            )
        finished = self.own.finished
        if finished is not None and finished.round != hub_facts["round"]:
            version_of(
                {
                    str(self.me): finished.version_facts(),
                    hub: {"run": finished.run, "round": hub_facts["round"]},
                }
            )

    def _as_hub(self, me: str) -> AvailableRows:
        channel, clients, own = self.channel, self.topology.of(me), self.own
        version = self._versions()
        assert own.finished is not None
        ids = own.ids
        if ids is None:
            ids = channel.receive("predict-ids", self.asker if me == self.home else self.home)[
                "ids"
            ]
        if me == self.home:
            for hub in self._other_hubs(SERVER):
                channel.send("predict-ids", hub, {"ids": ids, "told": packed(None)})
        facts = {"preparation": own.preparation, "round": own.finished.round, "version": version}
        for client in clients:
            channel.send("predict-ids", client, {"ids": ids, "told": packed(facts)})
        rows_of = {client: channel.receive("predict-held", client)["held"] for client in clients}
        there = rows_of_silo(rows_of, len(ids))
        if me == self.home:
            there = self._everywhere(there)
            decision = self._decision(there, version)
            for hub in self._other_hubs():
                channel.send("predict-go", hub, {"told": packed(decision)})
        else:
            channel.send("predict-there", self.home, {"there": there[:, None]})
            decision = self._receive_decision(self.home)
        for client in clients:
            channel.send("predict-go", client, {"told": packed(decision)})
        if decision["rows"] != len(ids):
            raise DataError(
                f"protocol violation: {title(self.asker)} goes on with another number of rows"
            )
        rows = {client: flags.nonzero()[:, 0] for client, flags in rows_of.items()}
        return self._available(decision, rows, {}, there)

    def _as_server(self) -> AvailableRows:
        self._versions()
        return self._available(self._receive_decision(self.home), {}, {}, FLAGS)

    def _other_hubs(self, *but: str) -> list[str]:
        """The other hubs, and the server."""
        return [hub for hub in listeners(self.topology) if hub not in (self.me, *but)]

    def _receive_decision(self, party: Party) -> dict[str, Any]:
        message = self.channel.receive("predict-go", party)["told"]
        return checked(message, rows=int, without=bool, version=str)

    def _versions(self) -> str:
        """All blocks are of one run and one round."""
        assert self.own.finished is not None
        facts_of = {str(self.me): self.own.finished.version_facts()}
        for hub in self._other_hubs():
            self.channel.send("predict-version", hub, {"told": packed(facts_of[str(self.me)])})
        for hub in self._other_hubs():
            message = self.channel.receive("predict-version", hub)["told"]
            facts_of[hub] = checked(message, run=str, round=int, block=str)
        return version_of(facts_of)

    def _everywhere(self, own_rows: Tensor) -> Tensor:
        """Which rows each silo has, [rows, silos], at the asking hub."""
        columns = {self.home: own_rows}
        for silo in self.topology.silos:
            if silo != self.home:
                columns[silo] = self.channel.receive("predict-there", silo)["there"][:, 0]
                if len(columns[silo]) != len(own_rows):
                    raise DataError(
                        f"protocol violation: {title(silo)} answers for another number of rows"
                    )
        return torch.stack([columns[silo] for silo in self.topology.silos], 1)

    def _decision(self, there: Tensor, version: str) -> dict[str, Any]:
        if self.me == self.asker:
            return self._decide(there, version)
        self.channel.send("predict-there", self.asker, {"there": there})
        return self._receive_decision(self.asker)

    def _decide(self, there: Tensor, version: str) -> dict[str, Any]:
        """At the asking party: whether enough rows are available."""
        lacking = (there == 0).sum(0).tolist()
        missing = [
            f"{n} in silo {j}" for j, n in zip(self.topology.silos, lacking, strict=True) if n
        ]
        rows = len(there)
        if missing and not self.own.without:
            incomplete = int((there == 0).any(1).sum())
            raise DataError(
                f"{incomplete} of {rows} rows are missing: {', '.join(missing)}. Ask for others, "
                "or with --missing without"
            )
        if not bool(there.any()):
            raise DataError(f"no silo has any of the {rows} rows")
        if missing:
            self.log.tell("missing", f"missing rows: {', '.join(missing)}")
        return {"rows": rows, "without": self.own.without, "version": version}

    def _available(
        self,
        decision: Mapping[str, Any],
        rows: Mapping[Client, Tensor],
        x: Mapping[Client, Tensor],
        there: Tensor,
    ) -> AvailableRows:
        topology, size = self.topology, decision["rows"]
        known = known_to(topology, [self.me])
        view = View(topology.silos, topology.server, known, size, rows, x, dict.fromkeys(x))
        return AvailableRows(view, there, decision["without"], decision["version"])


def checked(message: Tensor, **kinds: type) -> dict[str, Any]:
    """Another party's message, which has these fields, of these types."""
    value = unpacked(message)
    if not isinstance(value, dict) or {k: type(v) for k, v in value.items()} != kinds:
        raise DataError(f"protocol violation: a message without {', '.join(kinds)}")
    return value


def rows_of_silo(flags_of: dict[Client, Tensor], rows: int) -> Tensor:
    """Which rows a silo has, from what its clients say; none at two of them."""
    if any(len(flags) != rows or bool((flags > 1).any()) for flags in flags_of.values()):
        raise DataError("protocol violation: a client answers for another number of rows")
    total = torch.stack([flags.long() for flags in flags_of.values()]).sum(0)
    if bool((total > 1).any()):
        doubled = [title(c) for c, flags in flags_of.items() if bool((flags[total > 1] > 0).any())]
        count = int((total > 1).sum())
        raise DataError(f"{count} of these rows are at {' and '.join(doubled)}; keep each at one")
    return total.to(torch.uint8)


def availability_permits(
    topology: Topology, asker: Party, shapes: Shapes
) -> dict[Route, PayloadForm]:
    """What may pass besides the messages of the algorithm, for permits."""
    home, silos = home_of(asker), len(topology.silos)
    json_form, ids, held_form = form_of({"told": JSON}), form_of(IDS), form_of({"held": FLAGS})
    ways: dict[Route, PayloadForm] = {}
    for hub in listeners(topology):
        for other in listeners(topology):
            ways[Route("predict-version", hub, other)] = json_form
        ways[Route("predict-go", home, hub)] = json_form
        if hub != SERVER:
            ways[Route("predict-ids", home, hub)] = ids
            ways[Route("predict-ids", hub, f"{hub}/*")] = ids
            ways[Route("predict-held", f"{hub}/*", hub)] = held_form
            ways[Route("predict-there", hub, home)] = form_of({"there": FLAGS[:, None]})
            ways[Route("predict-go", hub, f"{hub}/*")] = json_form
    if isinstance(asker, Client):
        there = torch.zeros(1, silos, dtype=torch.uint8)
        scores = torch.zeros(1, shapes.scores, dtype=shapes.dtype)
        ways[Route("predict-ids", f"{home}/*", home)] = ids
        ways[Route("predict-go", f"{home}/*", home)] = json_form
        ways[Route("predict-there", home, f"{home}/*")] = form_of({"there": there})
        ways[Route("predict-scores", home, f"{home}/*")] = form_of(
            {"scores": scores, "there": there}
        )
    return ways


def home_of(asker: Party) -> str:
    """The silo that gets the scores."""
    return asker.silo if isinstance(asker, Client) else asker
