"""What a finished run left with a party: its part of the model, and its version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save

from ...algorithms.contract import Algorithm
from ...core import tree
from ...core.errors import DataError
from ...core.placed import AtClients, AtHubs
from ...engines.party.engine import PartyEngine
from ...records.checkpoint import Checkpoint, load_checkpoint
from ...records.history import CHECKPOINT
from ...runs.stopping import Validated
from .past_rounds import DONE

CURE = (
    "restore it from a backup, or start all parties with --resume: the last rounds are made again"
)


@dataclass(frozen=True)
class FinishedRun:
    """A party's part of the run with this fingerprint, after so many rounds. `block`: a digest of
    its tensors."""

    run: str
    round: int
    block: str
    checkpoint: Checkpoint

    @staticmethod
    def read(folder: Path, run: str) -> FinishedRun:
        """DataError where there is none, or one of another run."""
        try:
            done = json.loads((folder / DONE).read_text(encoding="utf-8"))
            of, rounds = str(done["run"]), int(done["rounds"])
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{folder}: no finished run is there ({DONE})") from None
        if of != run:
            raise DataError(
                f"{folder} is of another run: fingerprints {of[:12]} and {run[:12]} (another run "
                "file, agreement or version of FedLoom)"
            )
        checkpoint = load_checkpoint(folder / CHECKPOINT, CURE)
        if checkpoint.round != rounds:
            raise DataError(
                f"{folder}: the run ended after round {rounds}, the checkpoint is of round "
                f"{checkpoint.round}"
            )
        tensors = {name: checkpoint.tensors[name] for name in sorted(checkpoint.tensors)}
        return FinishedRun(of, rounds, hashlib.sha256(save(tensors)).hexdigest(), checkpoint)

    def version_facts(self) -> dict[str, Any]:
        """For other hubs."""
        return {"run": self.run, "round": self.round, "block": self.block}


def state_of(fed: PartyEngine, algorithm: Algorithm, finished: FinishedRun | None) -> Any:
    """The trained state, as far as it lives here; a client of most algorithms holds none of it.
    With early stopping, the best."""
    start = algorithm.start(fed)
    fresh = start._asdict()
    like = {name: fed.read(value) for name, value in fresh.items()}
    if not tree.tensors(like):
        return start
    if finished is None:
        raise DataError("this algorithm keeps state at its clients, and this client's is lost")
    state = finished.checkpoint.snapshot(like).state
    placed = {name: tree.map_tensors(lambda a: a.to(fed.device), state[name]) for name in fresh}
    state = type(start)(**{name: _at(fed, fresh[name], v) for name, v in placed.items()})
    return algorithm.best_of(fed, state) if isinstance(algorithm, Validated) else state


def _at(fed: PartyEngine, fresh: Any, values: Any) -> Any:
    if isinstance(fresh, AtClients):
        return fed.place_clients(values)
    return AtHubs(values, fresh.places)


def version_of(facts_of: dict[str, dict[str, Any]]) -> str:
    """One name for the whole model, from the version facts of hubs and server; DataError where they
    do not belong together."""
    rounds = {name: facts["round"] for name, facts in facts_of.items()}
    runs = {name: facts["run"][:12] for name, facts in facts_of.items()}
    for what, values in (("runs", runs), ("rounds", rounds)):
        if len(set(values.values())) > 1:
            whose = ", ".join(f"{name} {value}" for name, value in sorted(values.items()))
            raise DataError(f"blocks of different {what} do not belong together: {whose}")
    plain = json.dumps(facts_of, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()
