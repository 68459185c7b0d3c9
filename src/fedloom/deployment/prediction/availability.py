"""Before scores: all blocks are of one version, and everyone knows who has which rows.

The one who asks names rows by keyed hashes of their ids; hubs and clients say which of them they
have; the one who asks goes on, or does not.

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
from ...fabric.permits import Form, Way, form_of
from ...models.task import Shapes
from ..agreement.messages import JSON, packed, unpacked
from ..agreement.own_tables import HASH
from ..channel import Speaking
from ..connect import listeners
from ..log import Log
from ..party.finished import Finished, version_of
from .lookup import OwnRows

MOVES = {"predict-version": 1, "predict-ids": 2, "predict-held": 3, "predict-there": 4}
MOVES |= {"predict-go": 5, "predict-scores": 1}
FLAGS = torch.zeros(1, dtype=torch.uint8)
IDS = {"ids": torch.zeros(1, HASH, dtype=torch.uint8), "told": JSON}


@dataclass(frozen=True)
class Brought:
    """What a party brings: its part of the model, how its silo prepares columns, a client's rows;
    and of the one who asks, hashes of ids and whether a silo may be left out of a score."""

    finished: Finished | None
    preparation: str = ""
    rows: OwnRows | None = None
    ids: Tensor | None = None
    without: bool = False


class Called(NamedTuple):
    """`view`: what this party knows of the rows; `there`: who has which, [rows, silos], in the
    asking silo."""

    view: View
    there: Tensor
    without: bool
    version: str


@dataclass(frozen=True)
class RollCall:
    """One party's part in it."""

    me: Party
    asker: Party
    topology: Topology
    speak: Speaking
    brought: Brought
    log: Log

    def go(self) -> Called:
        if isinstance(self.me, Client):
            return self._as_client(self.me)
        return self._as_server() if self.me == SERVER else self._as_hub(self.me)

    @property
    def home(self) -> str:
        return home_of(self.asker)

    def _as_client(self, me: Client) -> Called:
        speak, hub, mine = self.speak, me.silo, self.brought
        if mine.ids is not None:
            speak.say("predict-ids", hub, {"ids": mine.ids, "told": packed(None)})
        asked = speak.hear("predict-ids", hub)
        told = checked(asked["told"], preparation=str, round=int, version=str)
        self._same_as_hub(told, hub)
        assert mine.rows is not None
        held, x = mine.rows.find(asked["ids"])
        speak.say("predict-held", hub, {"held": held})
        there = FLAGS
        if mine.ids is not None:
            there = speak.hear("predict-there", hub)["there"]
            speak.say("predict-go", hub, {"told": packed(self._decide(there, told["version"]))})
        return self._called(self._go_of(hub), {me: held.nonzero()[:, 0]}, {me: x}, there)

    def _same_as_hub(self, told: Any, hub: str) -> None:
        if told["preparation"] != self.brought.preparation:
            raise DataError(
                f"{title(self.me)}: its columns are prepared otherwise than those of {title(hub)}"
            )
        own = self.brought.finished
        if own is not None and own.round != told["round"]:
            version_of({str(self.me): own.told(), hub: {"run": own.run, "round": told["round"]}})

    def _as_hub(self, me: str) -> Called:
        speak, clients, own = self.speak, self.topology.of(me), self.brought
        version = self._versions()
        assert own.finished is not None
        ids = own.ids
        if ids is None:
            ids = speak.hear("predict-ids", self.asker if me == self.home else self.home)["ids"]
        if me == self.home:
            for hub in self._other_hubs(SERVER):
                speak.say("predict-ids", hub, {"ids": ids, "told": packed(None)})
        told = {"preparation": own.preparation, "round": own.finished.round, "version": version}
        for client in clients:
            speak.say("predict-ids", client, {"ids": ids, "told": packed(told)})
        held = {client: speak.hear("predict-held", client)["held"] for client in clients}
        there = once(held, len(ids))
        if me == self.home:
            there = self._everywhere(there)
            decided = self._decided(there, version)
            for hub in self._other_hubs():
                speak.say("predict-go", hub, {"told": packed(decided)})
        else:
            speak.say("predict-there", self.home, {"there": there[:, None]})
            decided = self._go_of(self.home)
        for client in clients:
            speak.say("predict-go", client, {"told": packed(decided)})
        if decided["rows"] != len(ids):
            raise DataError(f"{title(self.asker)} goes on with another number of rows")
        rows = {client: flags.nonzero()[:, 0] for client, flags in held.items()}
        return self._called(decided, rows, {}, there)

    def _as_server(self) -> Called:
        self._versions()
        return self._called(self._go_of(self.home), {}, {}, FLAGS)

    def _other_hubs(self, *but: str) -> list[str]:
        """And the server."""
        return [hub for hub in listeners(self.topology) if hub not in (self.me, *but)]

    def _go_of(self, party: Party) -> dict[str, Any]:
        told = self.speak.hear("predict-go", party)["told"]
        return checked(told, rows=int, without=bool, version=str)

    def _versions(self) -> str:
        """All blocks are of one run and one round."""
        assert self.brought.finished is not None
        told = {str(self.me): self.brought.finished.told()}
        for hub in self._other_hubs():
            self.speak.say("predict-version", hub, {"told": packed(told[str(self.me)])})
        for hub in self._other_hubs():
            came = self.speak.hear("predict-version", hub)["told"]
            told[hub] = checked(came, run=str, round=int, block=str)
        return version_of(told)

    def _everywhere(self, mine: Tensor) -> Tensor:
        """Which rows each silo has, [rows, silos], at the asking hub."""
        columns = {self.home: mine}
        for silo in self.topology.silos:
            if silo != self.home:
                columns[silo] = self.speak.hear("predict-there", silo)["there"][:, 0]
                if len(columns[silo]) != len(mine):
                    raise DataError(f"{title(silo)} answers for another number of rows")
        return torch.stack([columns[silo] for silo in self.topology.silos], 1)

    def _decided(self, there: Tensor, version: str) -> dict[str, Any]:
        if self.me == self.asker:
            return self._decide(there, version)
        self.speak.say("predict-there", self.asker, {"there": there})
        return self._go_of(self.asker)

    def _decide(self, there: Tensor, version: str) -> dict[str, Any]:
        """At the one who asks: whether what is there is enough."""
        lacking = (there == 0).sum(0).tolist()
        told = [f"{n} in silo {j}" for j, n in zip(self.topology.silos, lacking, strict=True) if n]
        rows = len(there)
        if told and not self.brought.without:
            some = int((there == 0).any(1).sum())
            raise DataError(
                f"{some} of {rows} rows are missing: {', '.join(told)}. Ask for others, or with "
                "--missing without"
            )
        if not bool(there.any()):
            raise DataError(f"no silo has any of the {rows} rows")
        if told:
            self.log.tell("missing", f"missing rows: {', '.join(told)}")
        return {"rows": rows, "without": self.brought.without, "version": version}

    def _called(
        self,
        decided: Mapping[str, Any],
        rows: Mapping[Client, Tensor],
        x: Mapping[Client, Tensor],
        there: Tensor,
    ) -> Called:
        topology, size = self.topology, decided["rows"]
        known = known_to(topology, [self.me])
        view = View(topology.silos, topology.server, known, size, rows, x, dict.fromkeys(x))
        return Called(view, there, decided["without"], decided["version"])


def checked(told: Tensor, **kinds: type) -> dict[str, Any]:
    """What another party told: these fields, of these kinds."""
    found = unpacked(told)
    if not isinstance(found, dict) or {k: type(v) for k, v in found.items()} != kinds:
        raise DataError(f"what was told is not {', '.join(kinds)}")
    return found


def once(held: dict[Client, Tensor], rows: int) -> Tensor:
    """Which rows a silo has, from what its clients say; none at two of them."""
    if any(len(flags) != rows or bool((flags > 1).any()) for flags in held.values()):
        raise DataError("a client answers for another number of rows")
    total = torch.stack([flags.long() for flags in held.values()]).sum(0)
    if bool((total > 1).any()):
        doubled = [title(c) for c, flags in held.items() if bool((flags[total > 1] > 0).any())]
        count = int((total > 1).sum())
        raise DataError(f"{count} of these rows are at {' and '.join(doubled)}; keep each at one")
    return total.to(torch.uint8)


def around(topology: Topology, asker: Party, shapes: Shapes) -> dict[Way, Form]:
    """What may pass besides the messages of the algorithm."""
    home, silos = home_of(asker), len(topology.silos)
    told, ids, held = form_of({"told": JSON}), form_of(IDS), form_of({"held": FLAGS})
    ways: dict[Way, Form] = {}
    for hub in listeners(topology):
        for other in listeners(topology):
            ways[Way("predict-version", hub, other)] = told
        ways[Way("predict-go", home, hub)] = told
        if hub != SERVER:
            ways[Way("predict-ids", home, hub)] = ids
            ways[Way("predict-ids", hub, f"{hub}/*")] = ids
            ways[Way("predict-held", f"{hub}/*", hub)] = held
            ways[Way("predict-there", hub, home)] = form_of({"there": FLAGS[:, None]})
            ways[Way("predict-go", hub, f"{hub}/*")] = told
    if isinstance(asker, Client):
        there = torch.zeros(1, silos, dtype=torch.uint8)
        scores = torch.zeros(1, shapes.scores, dtype=shapes.dtype)
        ways[Way("predict-ids", f"{home}/*", home)] = ids
        ways[Way("predict-go", f"{home}/*", home)] = told
        ways[Way("predict-there", home, f"{home}/*")] = form_of({"there": there})
        ways[Way("predict-scores", home, f"{home}/*")] = form_of({"scores": scores, "there": there})
    return ways


def home_of(asker: Party) -> str:
    """The silo that gets the scores."""
    return asker.silo if isinstance(asker, Client) else asker
