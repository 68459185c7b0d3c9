"""The results of an experiment: written beside its curves, and stored with the package.

A result has the verdicts, the numbers behind them, and how they were obtained. `stored/NAME.json`
are those of the book (docs/results.md); a user's own results in a folder take precedence.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..core.files import SHARED, write_json, write_text
from ..records.manifest import Manifest, commit
from .conduct import Conduct, PlannedRun, rows_per_second, seconds
from .experiment import Experiment
from .figure import figure
from .lines import FigureLine, Measure, as_csv
from .verdicts import judge_all

Result = dict[str, Any]


def conclude(conduct: Conduct, finished: bool) -> Result | None:
    """Judge the records so far, and write the result; None before every setting has begun."""
    experiment, lines = conduct.experiment, conduct.lines()
    if len(lines) < len(experiment.settings):
        return None
    result = judged(conduct, lines, finished)
    write_text(conduct.folder / "curves.csv", as_csv(lines), SHARED)
    figure(experiment, lines, conduct.folder / "figure.png")
    write_json(conduct.folder / "result.json", result, SHARED)
    return result


def judged(conduct: Conduct, lines: Sequence[FigureLine], finished: bool) -> Result:
    """The verdicts on these lines, and how they were obtained."""
    experiment, runs = conduct.experiment, conduct.runs
    return {
        "name": experiment.name,
        "full": experiment.full,
        "finished": finished,
        "seeds": conduct.seeds,
        "iterations": conduct.iterations,
        "only": dict(experiment.only),
        "verdicts": [v.to_json() for v in judge_all(experiment.description["expect"], lines)],
        "numbers": numbers(experiment, lines),
        "search": conduct.search_table(),
        "rows_per_second": {name: round(rate) for name, rate in rows_per_second(runs)},
        "seconds": round(seconds([*conduct.trials, *runs]), 1),
        "device": _devices(runs),
        "created": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
    }


def numbers(experiment: Experiment, lines: Sequence[FigureLine]) -> list[dict[str, Any]]:
    """Mean and deviation over seeds, of the numbers that the description names (the paper's beside
    them), or of every line's end."""
    first = experiment.description["panel"][0]
    wanted = experiment.description.get("number") or [
        {"where": {**line.setting.place}, "y": first["y"], "x": first.get("x", "round")}
        for line in lines
    ]
    numbers = []
    for table in wanted:
        measure, where = Measure.of(table), table.get("where", {})
        for line in (line for line in lines if line.setting.is_at(where)):
            until = table.get("until", 1.0) * line.end(measure)
            values = line.values(measure, until, table.get("stat", "last"))
            sound = values[~(values != values)]
            numbers.append(
                {
                    "setting": line.setting.name,
                    "y": table["y"],
                    "at": f"{measure.x} {until:g}",
                    "mean": float(sound.mean()) if len(sound) else None,
                    "sd": float(sound.std(ddof=1)) if len(sound) > 1 else None,
                    "diverged": len(line.diverged),
                    "paper": table.get("paper"),
                }
            )
    return numbers


def _devices(runs: Sequence[PlannedRun]) -> str:
    """The machines of these runs, wherever they are judged."""
    manifests = (Manifest.read(manifest.folder) for manifest in runs)
    machines = [manifest.values["machine"] for manifest in manifests if manifest is not None]
    names = [_device(machine) for machine in machines]
    return " and ".join(dict.fromkeys(names)) or _device({"device": "cpu", "cores": os.cpu_count()})


def _device(machine: Mapping[str, Any]) -> str:
    if machine["device"] == "cpu":
        return f"CPU, {machine['cores']} cores ({platform.machine()})"
    return machine.get("gpu", machine["device"])  # runs of before it was noted have no name of it


def latest(name: str, full: bool, root: Path) -> tuple[Result, str] | None:
    """The user's own result, or the stored one; and which it is."""
    called = f"{name}-full" if full else name
    own = root / called / "result.json"
    if own.is_file():
        return json.loads(own.read_text(encoding="utf-8")), "yours"
    stored = files(__package__) / "stored" / f"{called}.json"
    if stored.is_file():
        return json.loads(stored.read_text(encoding="utf-8")), "stored"
    return None


def how(experiment: Experiment) -> str:
    """How the setting differs from the paper's."""
    if not experiment.full:
        return f"smaller than the paper: {experiment.description['smaller']}"
    differs = experiment.description.get("differs")
    return f"the paper's setting{f', but: {differs}' if differs else ''}"


def in_short(result: Mapping[str, Any]) -> str:
    """The verdicts of a result in a few words."""
    verdicts = [verdict["held"] for verdict in result["verdicts"]]
    text = f"{sum(verdicts)} of {len(verdicts)} reproduced"
    return text if result["finished"] else f"{text} (so far)"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
