"""A finished run that goes on for more rounds."""

from __future__ import annotations

from pathlib import Path

from ..config.runfile import RunFile
from ..core.errors import DataError, SettingError
from ..core.files import SHARED, locked, write_text
from ..records.checkpoint import round_of
from ..records.history import CHECKPOINT
from ..records.manifest import Manifest

LENGTH = (
    "algorithm.rounds",
    "algorithm.epochs",
    "evaluation.every",
    "output.checkpoint_every",
    "output.folder",
)  # what may differ: how long a run is, and what follows from it


def warm_restart(file: RunFile, folder: Path, rounds: int) -> RunFile:
    """The run file of a finished run, for so many rounds more; the folder's is it, too. Refused
    where `file` is not what was run."""
    begun = Manifest.read(folder)
    if begun is None or begun.values["finished"] is None:
        cure = "" if begun is None else f": go on with it first (fedloom run --resume {folder})"
        raise DataError(f"{folder} holds no finished run{cure}")
    done, rows = RunFile.read(folder / "run.toml"), begun.values["data"]["rows"]["train"]
    if (key := difference(file.of_rows(rows), done)) is not None:
        raise SettingError(
            f"{folder}: {key} was another when it was run; --more goes on with a run as it is"
        )
    places = {name: folder_of(folder, name, n == 0) for n, name in enumerate(begun.parts)}
    reached = {name: _round(place) for name, place in places.items()}
    file = done.replaced("evaluation", every=done.every)
    file = file.replaced("output", checkpoint_every=done.checkpoint_every)
    file = file.replaced("algorithm", rounds=reached[begun.parts[0]] + rounds)
    with locked(folder):
        begun.goes_on(folder, file, reached, rounds, file.epochs_of(rows))
        write_text(folder / "run.toml", file.to_toml(), SHARED)
    return file


def folder_of(folder: Path, name: str, main: bool) -> Path:
    """Of a part of a job."""
    return folder if main else folder / "baselines" / name


def difference(file: RunFile, done: RunFile) -> str | None:
    """The first key that both do not have in common, but for how long the run is."""
    own, theirs = file.to_dict(), done.to_dict()
    for section in {**own, **theirs}:
        a, b = own.get(section, {}), theirs.get(section, {})
        for key in {**a, **b}:
            if f"{section}.{key}" not in LENGTH and a.get(key) != b.get(key):
                return f"{section}.{key}"
    return None


def _round(folder: Path) -> int:
    """Of the last checkpoint; DataError where there is none."""
    round = round_of(folder / CHECKPOINT)
    if round is None:
        raise DataError(f"{folder}: there is no checkpoint to go on from")
    return round
