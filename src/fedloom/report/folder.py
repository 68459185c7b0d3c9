"""Reading a run folder: what was run, what it recorded, what it sent.

A run that still goes on, or was interrupted, can be read; `problems` says what is missing. What is
not a run, or is damaged, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from ..records.metrics import HEADLINE
from ..records.record import GREW, Record, grew


@dataclass(frozen=True)
class RunFolder:
    """A run as it lies on disk. `records` and `ledgers` are by part, the main one first."""

    path: Path
    manifest: Mapping[str, Any]
    records: Mapping[str, list[dict[str, Any]]]
    ledgers: Mapping[str, dict[str, Any]]
    config_text: str
    problems: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return str(self.manifest.get("title") or self.path.resolve().name)

    @property
    def main(self) -> str:
        """The part that is no baseline."""
        return str(self.manifest["algorithm"])

    @property
    def finished(self) -> bool:
        return bool(self.manifest.get("finished")) and not self.interrupted

    @property
    def interrupted(self) -> bool:
        return bool(self.manifest.get("interrupted"))

    @property
    def data(self) -> Mapping[str, Any]:
        """Who holds what: `Federated.summary()`."""
        return self.manifest.get("data") or {}

    def without(self, part: str) -> RunFolder:
        """The same, but for a part that says what another one says."""
        records = {name: values for name, values in self.records.items() if name != part}
        ledgers = {name: values for name, values in self.ledgers.items() if name != part}
        problems = [problem for problem in self.problems if not problem.startswith(f"{part}: ")]
        return replace(self, records=records, ledgers=ledgers, problems=tuple(problems))

    @property
    def lone(self) -> str | None:
        """The silo that can train alone, where there is only one: the one with labels."""
        silos = self.data.get("silos") or {}
        labelled = [silo for silo, holding in silos.items() if holding.get("labels")]
        return labelled[0] if len(labelled) == 1 else None

    @property
    def metrics(self) -> list[str]:
        """Test metrics that any part recorded, the headline first; [] without test rows."""
        names: dict[str, None] = {}
        for records in self.records.values():
            for record in records:
                names.update(dict.fromkeys(record["metrics"]))
        own = self.data.get("goal")
        first = next((metric for goal, metric in HEADLINE.items() if goal == own), "")
        return sorted(names, key=lambda name: name != first)

    @property
    def headline(self) -> str:
        """What the run is judged by: a test metric, or the training loss where there is none."""
        return next(iter(self.metrics), "train_loss")


def judged(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record that a part is judged by: the last or, with early stopping, that of the model
    which was kept."""
    kept = [record for record in records if record["round"] == records[-1].get("best")]
    return (kept or list(records))[-1]


def read_run(folder: Path) -> RunFolder:
    """The run in a folder."""
    folder = Path(folder)
    if not (folder / "manifest.json").is_file():
        raise DataError(f"{folder} is not a run folder: it has no manifest.json")
    manifest = _read_json(folder / "manifest.json")
    if not isinstance(manifest.get("algorithm"), str):
        raise DataError(f"{folder / 'manifest.json'} is damaged: it names no algorithm")
    _check_data(manifest.get("data") or {}, folder)
    main = manifest["algorithm"]
    problems = [f"{part}: {why}." for part, why in (manifest.get("halted") or {}).items()]
    places = {main: folder}
    for name in [*_parts(manifest, folder), *_found_baselines(folder)]:
        places.setdefault(str(name), folder / "baselines" / str(name))
    records, ledgers = {}, {}
    for part, place in places.items():
        if (place / "records.jsonl").is_file():
            records[part] = _read_records(place / "records.jsonl", problems)
            if _grew(records[part]):
                problems.append(f"{part}: {GREW}.")
        elif part == main and manifest.get("finished"):
            raise DataError(f"{folder} is damaged: the run is finished, but has no records.jsonl")
        else:
            problems.append(f"{part}: nothing is recorded yet.")
        if (place / "ledger.json").is_file():
            ledgers[part] = _read_ledger(place / "ledger.json")
    config = folder / "run.toml"
    if not config.is_file():
        problems.append("The run file (run.toml) is missing.")
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    run = RunFolder(folder, manifest, records, ledgers, text, tuple(problems))
    return run if run.lone is None or "alone" not in records else run.without("no-exchange")


def _check_data(data: Any, folder: Path) -> None:
    """Who holds what is left out, or said in full."""
    try:
        if data:
            sums = data["rows"]["train"] + data["rows"]["test"]
            for silo in data["silos"].values():
                sums += sum(train + test for train, test in silo["clients"].values())
    except (KeyError, TypeError, ValueError, AttributeError):
        where = folder / "manifest.json"
        raise DataError(f"{where} is damaged: data does not say who holds what") from None


def _parts(manifest: Mapping[str, Any], folder: Path) -> list[str]:
    parts = manifest.get("parts") or []
    if not isinstance(parts, list):
        raise DataError(f"{folder / 'manifest.json'} is damaged: parts is not a list")
    return parts


def _found_baselines(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("baselines/*/records.jsonl"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} is damaged: {problem}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged: it holds no JSON object")
    return value


def _grew(records: list[dict[str, Any]]) -> bool:
    try:
        return grew([Record.from_json(record) for record in records])
    except TypeError:  # made by another version
        return False


def _read_records(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """One record a line. A last line that was cut short is left out: the run died while writing."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(_record(json.loads(line)))
        except (ValueError, TypeError, KeyError) as problem:
            if number == len(lines):
                problems.append(f"{path.name}: the last line was cut short and is left out.")
                break
            raise DataError(f"{path}, line {number}, is damaged: {problem}") from None
    return records


def _record(value: Any) -> dict[str, Any]:
    """A record in its full form: `metrics` and `bytes` are there, maybe empty."""
    if not isinstance(value, dict) or not isinstance(value.get("round"), int):
        raise ValueError("not a record with a round")
    metrics, sent = value.get("metrics") or {}, value.get("bytes") or {}
    silos = value.get("by_silo") or {}
    if not all(isinstance(part, dict) for part in (metrics, sent, silos, *silos.values())):
        raise ValueError("metrics, bytes and by_silo must be objects")
    return {**value, "metrics": metrics, "bytes": sent, "by_silo": silos}


def _read_ledger(path: Path) -> dict[str, Any]:
    ledger = _read_json(path)
    lines = ledger.get("lines")
    needed = ("tier", "direction", "kind", "messages", "bytes")
    if not isinstance(lines, list) or not all(
        isinstance(line, dict) and all(key in line for key in needed) for line in lines
    ):
        raise DataError(f"{path} is damaged: it has no lines of {', '.join(needed)}")
    return ledger
