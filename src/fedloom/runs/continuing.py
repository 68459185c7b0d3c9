"""A run between two rounds: out of its engine, and back into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core import tree
from ..core.errors import SettingError
from ..core.placed import AtClients
from ..core.rng import Streams
from ..fabric.ledger import Ledger
from ..fabric.schedule import Recorded
from ..fabric.simclock.clock import Clock, Times
from ..records.snapshot import Snapshot

if TYPE_CHECKING:
    from .run import Run


def snapshot_of(run: Run) -> Snapshot:
    """The run so far; SettingError before the first round."""
    if run.state is None:
        raise SettingError("nothing is trained yet: call fit(rounds) first")
    fields = run.state._asdict()
    state = {name: tree.copy(run.fed.read(value)) for name, value in fields.items()}
    ledger, record = Ledger.merged([run.fed.ledger]), Recorded.merged([run.fed.record])
    clock = None if run.fed.clock is None else run.fed.clock.done.to_json()
    return Snapshot(run.round, state, ledger, record, clock, run.fed.releases.to_json())


def state_from(run: Run, snapshot: Snapshot) -> Any:
    """The snapshot's state in the run's engine; SettingError where it is another run's."""
    start, fields = run.played.start(run.fed), {}
    for name, fresh in start._asdict().items():
        wanted = run.fed.read(fresh)
        saved = dict(snapshot.state.get(name, {}))
        if {party: _names(v) for party, v in saved.items()} != {
            party: _names(v) for party, v in wanted.items()
        }:
            raise SettingError(f"the snapshot's {name} is not that of this algorithm and task")
        values = tree.map_tensors(lambda a, like: a.to(like, copy=True), saved, wanted)
        at_clients = isinstance(fresh, AtClients)
        fields[name] = (run.fed.place_clients if at_clients else run.fed.place_hubs)(values)
    return type(start)(**fields)


def _names(value: Any) -> Any:
    """Structure and shapes, whatever the precision."""
    return tree.signature(tree.map_tensors(lambda a: a.double(), value))


def clock_of(run: Run, saved: Mapping[str, Any] | None) -> Clock | None:
    """The virtual clock of a run with a network: at its start, or as it was saved."""
    if run.network is None:
        return None
    start = None if saved is None else Times.from_json(saved)
    streams, visits = Streams(run.seed), run.algorithm.asynchronous
    return Clock(run.network, run.placement.topology, streams, start, visits)
