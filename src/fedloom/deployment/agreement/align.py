"""How organisations agree on rows without putting their tables in one place: `fedloom align`.

Every client hashes its ids with a key that all clients share and no hub needs. Hubs exchange the
hashes of their silos and keep those that every silo has; each client gets the numbers of its own
rows. Clients send their hub sums over their columns, from which it fits the silo's preparation.
Hubs send each other shapes and classes. Every party ends with the agreement and with its own rows,
as if one party had read all tables.

This is no private set intersection. docs/threat-model.md says who learns what. Why it is not a
round over the verbs: ARCHITECTURE.md, "Agreement and availability".

    client -> hub   hashes    of the ids of its rows; names and kinds of its columns
    hub -> hub      others    hashes of its silo
    hub -> client   numbers   of its rows among the common ones
    client -> hub   variants  hashes of forms of ids that are not common (id_variants.py)
    hub -> hub      silo-variants  of its silo
    hub -> client   kinds     of the silo's columns: enough ids match, it goes on
    client -> hub   summary   of its columns; which labels occur (and how often, if `balanced`)
    hub -> hub      facts     how many columns, which labels (and how often in the silo)
    hub -> client   basis     the shared facts; the silo's preparation
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...config.fingerprint import fingerprint
from ...config.runfile import RunFile
from ...core.errors import AbortedError, DataError, ExistsError, FedLoomError, SettingError, reason
from ...core.files import read_secret
from ...core.topology import SERVER, Client, Party, Topology, known_to, title
from ...data.labels import Target
from ...data.placement import View
from ...data.tables.id_overlap import counted
from ...data.tables.prepare import Preparation
from ...fabric.kinds import Key, Message
from ...models.losses.weights import balanced_of
from ...transports.links.party import PartyTransport
from ..connect import Connections
from ..log import Log
from ..party_file import PartyFile
from .agreement import Agreement
from .id_variants import more_of, of_silo, overlap_at
from .messages import MOVES, AlignmentRefused, go_ahead, packed, permits, unpacked
from .own_rows import write_preparation, write_rows
from .own_tables import (
    OwnTable,
    TableSettings,
    class_counts,
    fitted,
    kinds_of,
    refuse_poor,
    rows_of,
    target_of,
)
from .shared_facts import SharedFacts


@dataclass
class Alignment:
    """One party's part in the agreement."""

    file: RunFile
    own: PartyFile
    log: Log
    settings: TableSettings = field(init=False)

    def __post_init__(self) -> None:
        self.own.refuse_open_secrets()
        self.me, self.settings = self.own.me, TableSettings.of(self.file)
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
                raise ExistsError(f"{path} already exists: remove it, or name another")
        self.log.note("aligning", run=self.run)
        self._transport.open()
        try:
            made = self._go()
        except FedLoomError as problem:
            if not isinstance(problem, AbortedError | AlignmentRefused):
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
                return self._run_client(self.me)
            return self._run_server() if self.me == SERVER else self._run_hub(self.me)
        except (KeyError, TypeError, AttributeError, IndexError) as problem:
            raise DataError(f"messages do not fit together ({reason(problem)})") from None

    def _run_client(self, me: Client) -> Agreement:
        party, settings = self.own.party, self.settings
        if party.table is None or party.salt is None:
            raise SettingError("[party]: a client aligns its `table` with a `salt`: name both")
        table = OwnTable(Path(party.table), read_salt(Path(party.salt)), me, settings)
        self._send("hashes", me.silo, ids=table.ids(), told=packed(table.columns()))
        reply = self._receive("numbers", me.silo)
        numbers, common = reply["numbers"], reply["common"]
        if len(numbers) != len(common) or len(numbers) != len(table.ids()):
            raise DataError(
                f"protocol violation: {title(me.silo)} numbered {len(numbers)} rows, not those of "
                f"{title(me)}"
            )
        matched = int(common.count_nonzero()), len(common)
        self.log.note("matched", rows=matched[1], matched=matched[0])
        self.log.say(f"matched: {counted(matched, ' of our rows')}")
        self._send("variants", me.silo, **table.variants(common))
        go_on = go_ahead(unpacked(self._receive("kinds", me.silo)["told"]))
        kinds = go_on["kinds"]
        summary = {
            "columns": table.summary(kinds, numbers),
            "labels": table.labels(common, numbers, go_on["train"]),
        }
        self._send("summary", me.silo, told=packed(summary))
        agreed = unpacked(self._receive("basis", me.silo)["told"])
        shared = SharedFacts.from_json(agreed["basis"])
        preparation = Preparation.from_json(agreed["preparation"])
        target = Target(shared.goal, shared.classes)
        rows, x, y = table.rows(kinds, numbers, preparation[me.silo], target)
        return self._write(shared, {me: rows}, {me: x}, {me: y}, preparation)

    def _run_hub(self, me: str) -> Agreement:
        clients, others = self.topology.of(me), [s for s in self.topology.silos if s != me]
        hashes = {client: self._receive("hashes", client) for client in clients}
        tables = {client: unpacked(message["told"]) for client, message in hashes.items()}
        kinds = kinds_of(me, tables, self.settings)
        ids_of = {client: message["ids"] for client, message in hashes.items()}
        for other in others:
            self._send("others", other, ids=torch.cat([*ids_of.values()]))
        theirs = {other: self._receive("others", other)["ids"] for other in others}
        shares = self.settings.test, self.settings.validation
        size, held, own_rows = rows_of(ids_of, [*theirs.values()], *shares)
        for client, (numbers, common) in own_rows.items():
            self._send("numbers", client, numbers=numbers, common=common)
        self._check_overlap(own_rows, {other: len(ids) for other, ids in theirs.items()}, size)
        for client in clients:
            self._send("kinds", client, told=packed({"kinds": kinds, "train": size}))
        sums = {client: unpacked(self._receive("summary", client)["told"]) for client in clients}
        columns = [sums[client]["columns"] for client in clients]
        preparation = fitted(me, columns, self.settings.rare)
        labels_of = {client: sums[client]["labels"] for client in clients}
        counts = self._class_counts(labels_of)
        facts = {
            "width": len(preparation.columns),
            "labelled": tables[clients[0]]["labels"],
            "labels": {client.name: told for client, told in labels_of.items()},
            "counts": counts,
            "rows": size,
            "validation": held,
        }
        shared = self._settle({me: facts, **self._exchange("facts", others, facts)})
        prepared = Preparation({me: preparation}, shared.goal, shared.classes, self.settings.id)
        agreed = {"basis": shared.to_json(), "preparation": prepared.to_json()}
        for client in clients:
            self._send("basis", client, told=packed(agreed))
        if self.topology.server:
            self._send("basis", SERVER, told=packed({"basis": shared.to_json()}))
        rows = {client: n[n >= 0].sort().values for client, (n, _) in own_rows.items()}
        return self._write(shared, rows, {}, {}, prepared)

    def _check_overlap(
        self,
        own_rows: Mapping[Client, tuple[Tensor, Tensor]],
        others: Mapping[str, int],
        train: int,
    ) -> None:
        """Report how well ids match, the same at every hub; refuse where too few do."""
        own_variants = of_silo([self._receive("variants", client) for client in own_rows])
        for other in others:
            self._send("silo-variants", other, **own_variants)
        more = more_of([own_variants, *(self._receive("silo-variants", other) for other in others)])
        overlap = overlap_at(self.topology.silos, own_rows, others, more)
        self.log.note("matched", **overlap.to_json())
        for line in overlap.lines():
            self.log.say(line)
        idle = [
            title(client) for client, (numbers, _) in own_rows.items() if not (numbers >= 0).any()
        ]
        if idle:
            self.log.say(f"note: without training rows: {', '.join(idle)}")
        try:
            refuse_poor(overlap.by_silo(), train, self.settings.min_match)
        except DataError as problem:
            for client in own_rows:
                self._send("kinds", client, told=packed({"refused": str(problem)}))
            if self.topology.server:
                self._send("basis", SERVER, told=packed({"refused": str(problem)}))
            raise AlignmentRefused(str(problem)) from None
        if overlap.advice:
            self.log.say(f"note: {overlap.advice}")

    def _run_server(self) -> Agreement:
        silos = self.topology.silos
        first, *others = [go_ahead(unpacked(self._receive("basis", j)["told"])) for j in silos]
        if any(other != first for other in others):
            raise DataError("hubs have agreed on different things")
        return self._write(SharedFacts.from_json(first["basis"]), {}, {}, {}, None)

    def _exchange(self, kind: str, others: Iterable[str], value: Any) -> dict[str, Any]:
        for other in others:
            self._send(kind, other, told=packed(value))
        return {other: unpacked(self._receive(kind, other)["told"]) for other in others}

    def _class_counts(self, labels_of: Mapping[Client, Any]) -> list[int] | None:
        """Of the silo's training rows, where they are needed; those of its clients stay here."""
        told = {client: labels for client, labels in labels_of.items() if labels is not None}
        if not self.settings.balanced or not told:
            return None
        counts = class_counts(self.settings, told)
        for labels in told.values():
            del labels["counts"]
        return counts

    def _settle(self, facts: Mapping[str, Any]) -> SharedFacts:
        """The same at every hub."""
        silos = self.topology.silos
        labelled = tuple(silo for silo in silos if facts[silo]["labelled"])
        if not labelled:
            raise DataError(f"no silo has the label column {self.settings.label!r}")
        sizes = {silo: (facts[silo]["rows"], facts[silo]["validation"]) for silo in silos}
        if len(set(sizes.values())) > 1:
            raise DataError(f"hubs count different common rows: {sizes}")
        labels_of = {
            Client(silo, name): labels
            for silo in labelled
            for name, labels in facts[silo]["labels"].items()
            if labels is not None
        }
        target = target_of(self.settings, labels_of)
        several = target.goal == "classes"
        features = {silo: ((int(facts[silo]["width"]),), torch.float32) for silo in silos}
        size, held = next(iter(sizes.values()))
        return SharedFacts(
            self.topology,
            size,
            target.goal,
            target.classes,
            len(target.classes) if several else 1,
            features,
            ((), torch.int64 if several else torch.float32),
            labelled,
            held,
            self._weights(facts[labelled[0]]["counts"], target),
        )

    def _weights(self, counts: Sequence[int] | None, target: Target) -> tuple[float, ...]:
        """So that each class counts alike, where the run file asks for it."""
        if counts is None:
            return ()
        if len(counts) != len(target.classes):
            raise DataError(f"{len(counts)} classes were counted, {len(target.classes)} are known")
        return balanced_of(counts, target.classes)

    def _write(
        self,
        shared: SharedFacts,
        rows: Mapping[Client, Tensor],
        x: Mapping[Client, Tensor],
        y: Mapping[Client, Tensor | None],
        preparation: Preparation | None,
    ) -> Agreement:
        own, topology = self.own.party, self.topology
        agreement = Agreement.of(self.file, shared)
        known = known_to(topology, [self.me])
        sizes = shared.size, shared.validation
        view = View(topology.silos, topology.server, known, sizes[0], rows, x, y, sizes[1])
        shared.check(self.file, view)
        write_rows(Path(own.rows), view)
        if preparation is not None:
            write_preparation(Path(own.rows), preparation)
        agreement.write(Path(own.agreement))
        return agreement

    def _send(self, kind: str, to: Party, **payload: Tensor) -> None:
        self._transport.send(Message(Key(0, MOVES[kind]), kind, self.me, to, payload))

    def _receive(self, kind: str, source: Party) -> Any:
        key, seconds = Key(0, MOVES[kind]), self.own.waits.start
        message = self._transport.mailbox(self.me).take(source, key, kind, seconds)
        if message is None:
            raise DataError(f"protocol violation: {title(source)} skipped its {kind}")
        return message.payload


def topology_of(file: RunFile) -> Topology:
    """Who takes part, by the run file alone."""
    silos = file.values["data"]["silos"]
    clients = {
        silo: tuple(names) if isinstance(names, Mapping) else ("all",)
        for silo, names in silos.items()
    }
    return Topology(clients, file.algorithm.needs_server)


def read_salt(path: Path) -> str:
    """The key that ids are hashed with."""
    try:
        salt = read_secret(path, "salt").decode("utf-8").strip()
    except UnicodeDecodeError as problem:
        raise DataError(f"salt {path}: cannot be read ({problem})") from None
    if len(salt) < 16:
        raise SettingError("party.salt: at least 16 characters, that nobody else can guess")
    return salt
