"""How organisations agree on rows without putting their tables in one place: `fedloom align`.

Every client hashes its ids with a key that all clients share and no hub needs. Hubs exchange the
hashes of their silos and keep those that every silo has; each client hears the numbers of its own
rows. Clients tell their hub sums over their columns, which it fits the silo's preparation to; hubs
tell each other shapes and classes. Every party ends with the agreement and with its own rows, as if
somebody had read all tables at once.

This is no private set intersection. docs/threat-model.md says who learns what.

    client -> hub   hashes    of the ids of its rows; names and kinds of its columns
    hub -> hub      others    hashes of its silo
    hub -> client   numbers   of its rows among the common ones
    client -> hub   variants  hashes of forms of ids that are not common (variants.py)
    hub -> hub      variants  of its silo
    hub -> client   kinds     of the silo's columns: enough ids match, it goes on
    client -> hub   summary   of its columns; which labels occur
    hub -> hub      facts     how many columns, which labels
    hub -> client   basis     what all have agreed on; the silo's preparation
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...config.fingerprint import fingerprint
from ...config.runfile import RunFile
from ...core.errors import AbortedError, DataError, ExistsError, FedLoomError, SettingError, reason
from ...core.files import read_secret, write_text
from ...core.topology import SERVER, Client, Party, Topology, known_to, title
from ...data.labels import Target
from ...data.placement import View
from ...data.tables.id_overlap import counted
from ...data.tables.prepare import Preparation
from ...fabric.kinds import Key, Message
from ...transports.party import PartyTransport
from ..connect import Connections
from ..log import Log
from ..party_file import PartyFile
from .agreement import Agreement
from .id_variants import more_of, of_silo, overlap_at
from .messages import MOVES, Refused, go_ahead, packed, permits, unpacked
from .own_rows import preparation_beside, write_rows
from .own_tables import OwnTable, Settings, fitted, kinds_of, refuse_poor, rows_of, target_of
from .shared_facts import Basis


@dataclass
class Aligning:
    """One party's part in it."""

    file: RunFile
    own: PartyFile
    log: Log
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.own.refuse_open_secrets()
        self.me, self.settings = self.own.me, Settings.of(self.file)
        self.topology = topology_of(self.file)
        self.run = fingerprint(self.file, {"step": "align"})
        links = Connections(self.own, self.topology)
        self._transport: PartyTransport = links.transport(
            self.run, permits(self.topology), self.log.note
        )

    def go(self) -> Agreement:
        """To the end, with files on disk."""
        for path in (Path(self.own.party.agreement), Path(self.own.party.rows)):
            if path.exists():
                raise ExistsError(f"{path} is there already: remove it, or name another")
        self.log.note("aligning", run=self.run)
        self._transport.open()
        try:
            made = self._go()
        except FedLoomError as problem:
            if not isinstance(problem, AbortedError | Refused):
                self._transport.abort(f"{title(self.me)}: {problem}")
            self.log.note("failed", why=str(problem))
            raise
        finally:
            self._transport.close()
        self.log.note("aligned", rows=made.size)
        return made

    def _go(self) -> Agreement:
        try:
            if isinstance(self.me, Client):
                return self._as_client(self.me)
            return self._as_server() if self.me == SERVER else self._as_hub(self.me)
        except (KeyError, TypeError, AttributeError, IndexError) as problem:
            raise DataError(f"what was told does not fit together ({reason(problem)})") from None

    def _as_client(self, me: Client) -> Agreement:
        party, settings = self.own.party, self.settings
        if party.table is None or party.salt is None:
            raise SettingError("[party]: a client aligns its `table` with a `salt`: name both")
        table = OwnTable(Path(party.table), read_salt(Path(party.salt)), me, settings)
        self._send("hashes", me.silo, ids=table.ids(), told=packed(table.columns()))
        heard = self._hear("numbers", me.silo)
        numbers, common = heard["numbers"], heard["common"]
        if len(numbers) != len(common) or len(numbers) != len(table.ids()):
            raise DataError(f"{title(me.silo)} numbered {len(numbers)} rows, and there are others")
        matched = int(common.count_nonzero()), len(common)
        self.log.note("matched", rows=matched[1], matched=matched[0])
        self.log.say(f"matched: {counted(matched, ' of our rows')}")
        self._send("variants", me.silo, **table.variants(common))
        kinds = go_ahead(unpacked(self._hear("kinds", me.silo)["told"]))["kinds"]
        told = {
            "columns": table.summary(kinds, numbers),
            "labels": table.labels(common, settings.goal),
        }
        self._send("summary", me.silo, told=packed(told))
        made = unpacked(self._hear("basis", me.silo)["told"])
        basis = Basis.from_json(made["basis"])
        preparation = Preparation.from_json(made["preparation"])
        target = Target(basis.goal, basis.classes)
        rows, x, y = table.rows(kinds, numbers, preparation[me.silo], target)
        return self._write(basis, {me: rows}, {me: x}, {me: y}, preparation)

    def _as_hub(self, me: str) -> Agreement:
        clients, others = self.topology.of(me), [s for s in self.topology.silos if s != me]
        heard = {client: self._hear("hashes", client) for client in clients}
        told = {client: unpacked(mine["told"]) for client, mine in heard.items()}
        kinds = kinds_of(me, told, self.settings)
        held = {client: mine["ids"] for client, mine in heard.items()}
        for other in others:
            self._send("others", other, ids=torch.cat([*held.values()]))
        theirs = {other: self._hear("others", other)["ids"] for other in others}
        size, mine = rows_of(held, [*theirs.values()], self.settings.test)
        for client, (numbers, common) in mine.items():
            self._send("numbers", client, numbers=numbers, common=common)
        self._judge(mine, {other: len(ids) for other, ids in theirs.items()}, size)
        for client in clients:
            self._send("kinds", client, told=packed({"kinds": kinds}))
        sums = {client: unpacked(self._hear("summary", client)["told"]) for client in clients}
        columns = [sums[client]["columns"] for client in clients]
        preparation = fitted(me, columns, self.settings.rare)
        facts = {
            "width": len(preparation.columns),
            "labelled": told[clients[0]]["labels"],
            "labels": {client.name: sums[client]["labels"] for client in clients},
            "rows": size,
        }
        basis = self._settle({me: facts, **self._exchange("facts", others, facts)})
        prepared = Preparation({me: preparation}, basis.goal, basis.classes, self.settings.id)
        made = {"basis": basis.to_json(), "preparation": prepared.to_json()}
        for client in clients:
            self._send("basis", client, told=packed(made))
        if self.topology.server:
            self._send("basis", SERVER, told=packed({"basis": basis.to_json()}))
        numbered = {client: n[n >= 0].sort().values for client, (n, _) in mine.items()}
        return self._write(basis, numbered, {}, {}, prepared)

    def _judge(
        self,
        mine: Mapping[Client, tuple[Tensor, Tensor]],
        others: Mapping[str, int],
        train: int,
    ) -> None:
        """Say how well ids match, the same at every hub, and end it where that is too poor."""
        own = of_silo([self._hear("variants", client) for client in mine])
        for other in others:
            self._send("silo-variants", other, **own)
        more = more_of([own, *(self._hear("silo-variants", other) for other in others)])
        seen = overlap_at(self.topology.silos, mine, others, more)
        self.log.note("matched", **seen.to_json())
        for line in seen.lines():
            self.log.say(line)
        idle = [title(client) for client, (numbers, _) in mine.items() if not (numbers >= 0).any()]
        if idle:
            self.log.say(f"note: without training rows: {', '.join(idle)}")
        try:
            refuse_poor(seen.by_silo(), train, self.settings.min_match)
        except DataError as problem:
            for client in mine:
                self._send("kinds", client, told=packed({"refused": str(problem)}))
            if self.topology.server:
                self._send("basis", SERVER, told=packed({"refused": str(problem)}))
            raise Refused(str(problem)) from None
        if seen.advice:
            self.log.say(f"note: {seen.advice}")

    def _as_server(self) -> Agreement:
        silos = self.topology.silos
        heard = [go_ahead(unpacked(self._hear("basis", silo)["told"])) for silo in silos]
        if any(one != heard[0] for one in heard):
            raise DataError("hubs have agreed on different things")
        return self._write(Basis.from_json(heard[0]["basis"]), {}, {}, {}, None)

    def _exchange(self, kind: str, others: Iterable[str], told: Any) -> dict[str, Any]:
        for other in others:
            self._send(kind, other, told=packed(told))
        return {other: unpacked(self._hear(kind, other)["told"]) for other in others}

    def _settle(self, facts: Mapping[str, Any]) -> Basis:
        """The same at every hub."""
        silos = self.topology.silos
        labelled = tuple(silo for silo in silos if facts[silo]["labelled"])
        if not labelled:
            raise DataError(f"no silo has the label column {self.settings.label!r}")
        sizes = {silo: facts[silo]["rows"] for silo in silos}
        if len(set(sizes.values())) > 1:
            raise DataError(f"hubs count different common rows: {sizes}")
        told = {
            Client(silo, name): mine
            for silo in labelled
            for name, mine in facts[silo]["labels"].items()
            if mine is not None
        }
        target = target_of(self.settings, told)
        several = target.goal == "classes"
        features = {silo: ((int(facts[silo]["width"]),), torch.float32) for silo in silos}
        return Basis(
            self.topology,
            next(iter(sizes.values())),
            target.goal,
            target.classes,
            len(target.classes) if several else 1,
            features,
            ((), torch.int64 if several else torch.float32),
            labelled,
        )

    def _write(
        self,
        basis: Basis,
        rows: Mapping[Client, Tensor],
        x: Mapping[Client, Tensor],
        y: Mapping[Client, Tensor | None],
        preparation: Preparation | None,
    ) -> Agreement:
        own, topology = self.own.party, self.topology
        agreement = Agreement.of(self.file, basis)
        known = known_to(topology, [self.me])
        view = View(topology.silos, topology.server, known, basis.size, rows, x, y)
        basis.check(self.file, view)
        write_rows(Path(own.rows), view)
        if preparation is not None:
            write_text(preparation_beside(Path(own.rows)), preparation.to_json())
        agreement.write(Path(own.agreement))
        return agreement

    def _send(self, kind: str, to: Party, **payload: Tensor) -> None:
        self._transport.send(Message(Key(0, MOVES[kind]), kind, self.me, to, payload))

    def _hear(self, kind: str, source: Party) -> Any:
        key, seconds = Key(0, MOVES[kind]), self.own.waits.start
        message = self._transport.mailbox(self.me).take(source, key, kind, seconds)
        if message is None:
            raise DataError(f"{title(source)} went on without its {kind}")
        return message.payload


def topology_of(file: RunFile) -> Topology:
    """Who takes part, by the run file alone."""
    silos = file.values["data"]["silos"]
    clients = {
        silo: tuple(held) if isinstance(held, Mapping) else ("all",) for silo, held in silos.items()
    }
    return Topology(clients, file.algorithm.needs_server)


def read_salt(path: Path) -> str:
    """The key that ids are hashed with."""
    try:
        found = read_secret(path, "salt").decode("utf-8").strip()
    except UnicodeDecodeError as problem:
        raise DataError(f"salt {path}: cannot be read ({problem})") from None
    if len(found) < 16:
        raise SettingError("party.salt: at least 16 characters, that nobody else can guess")
    return found
