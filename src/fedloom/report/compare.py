"""Several runs in one figure, labelled by what differs between their run files.

Runs that differ in nothing but the seed are one curve: their mean, with a band from the lowest to
the highest.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import DataError, nearest
from ..core.extras import need
from ..records.bootstrap import Resampled
from ..records.predictions import Predictions
from . import style, words
from .curves import Axis, Curve, at, curve, drawn
from .folder import RunFolder, read_run
from .page import environment

# Settings that the model does not depend on, and the seed. Data are told apart by checksum.
IGNORED = {"evaluation", "output", "engine.seed", "engine.threads", "data.folder", "data.verify"}
MOST = 12  # curves that can be told apart


@dataclass(frozen=True)
class Group:
    """Runs of one setting; more than one where they differ in the seed. `label` names settings in
    full, `short` by their last word where that is clear. `part`: a baseline of theirs, in place of
    the runs themselves."""

    label: str
    short: str
    runs: tuple[RunFolder, ...]
    part: str | None = None

    @property
    def records(self) -> list[list[dict[str, Any]]]:
        """Of every run, only the rounds that all of them recorded."""
        records = [run.records.get(self.part or run.main) or [] for run in self.runs]
        common = set.intersection(*({record["round"] for record in run} for run in records))
        return [[record for record in run if record["round"] in common] for run in records]

    @property
    def results(self) -> list[dict[str, Any]]:
        """What every run is judged by: the model that early stopping kept or, without, the last
        round that all of them recorded."""
        of_runs = [(run.result(self.part or run.main), records) for run, records in self._pairs]
        return [kept if kept.get("best") is not None else own[-1] for kept, own in of_runs]

    @property
    def _pairs(self) -> list[tuple[RunFolder, list[dict[str, Any]]]]:
        return [(run, own) for run, own in zip(self.runs, self.records, strict=True) if own]


def compare(
    folders: Sequence[Path], out: Path, metric: str | None = None, axis: Axis = "round"
) -> Path:
    """Draw the main curves of all runs into one PNG; a table of final values as HTML, JSON and CSV
    beside it. `out` is the PNG, or a folder for compare.png. Returns the PNG's path."""
    need("report", "a figure of several runs")
    out = Path(out)
    path = out if out.suffix == ".png" else out / "compare.png"
    runs = _read(folders)
    metric = _metric(runs, metric)
    groups = grouped(runs)
    if len(groups) > MOST:
        raise DataError(f"{len(groups)} curves are too many for one figure: at most {MOST}")
    groups += pooled(runs)[: MOST - len(groups)]
    lines = {group.short: _curve(group, metric, axis) for group in groups}
    image = style.save(partial(drawn, lines, metric, axis), path)
    rows = _rows(groups, metric)
    path.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    with path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows({k: _cell(v) for k, v in row.items()} for row in rows)
    page = environment().get_template("compare.html.j2")
    text = page.render(
        rows=[_shown(row) for row in rows],
        metric=words.full_name(metric),
        images={"compare": image},
    )
    path.with_suffix(".html").write_text(text, encoding="utf-8")
    return path


def compare_table(folders: Sequence[Path], metric: str | None = None) -> list[dict[str, Any]]:
    """Final and best values, one row for each curve of `compare`."""
    runs = _read(folders)
    metric = _metric(runs, metric)
    return _rows([*grouped(runs), *pooled(runs)], metric)


def _read(folders: Sequence[Path]) -> list[RunFolder]:
    if not folders:
        raise DataError("nothing to compare: no run folder is given")
    count = Counter(Path(folder).resolve() for folder in folders)
    for folder in folders:
        if count[Path(folder).resolve()] > 1:
            raise DataError(f"{folder} is given twice")
    return [read_run(folder) for folder in folders]


def _metric(runs: Sequence[RunFolder], metric: str | None) -> str:
    """The metric asked for, or the headline that all runs share."""
    known = {name: None for run in runs for name in run.metrics} | {"train_loss": None}
    if metric is None:
        headlines = sorted({run.headline for run in runs})
        if len(headlines) > 1:
            raise DataError(f"the runs are judged by {', '.join(headlines)}: choose a metric")
        return headlines[0]
    if metric not in known:
        raise DataError(f"no run recorded the metric {metric!r}{nearest(metric, known)}")
    return metric


def grouped(runs: Sequence[RunFolder]) -> list[Group]:
    """Runs that differ only in the seed are together; runs of the same seed are not."""
    settings = [dict(_settings(run)) for run in runs]
    members: dict[tuple[str, int], list[RunFolder]] = {}
    where: dict[tuple[str, int], dict[str, Any]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for run, setting in zip(runs, settings, strict=True):
        key = json.dumps(setting, sort_keys=True, default=str)
        again = seen[key, str(seed(run))]
        seen[key, str(seed(run))] += 1
        members.setdefault((key, again), []).append(run)
        where[key, again] = setting
    names = [name for setting in settings for name in setting]
    differ = [
        name
        for name in dict.fromkeys(names)
        if len({json.dumps(s.get(name), default=str) for s in settings}) > 1
    ]
    groups = [
        Group(
            _label(where[key], differ, group[0]),
            _label(where[key], differ, group[0], shorten=True),
            tuple(group),
        )
        for key, group in members.items()
    ]
    return _distinct(groups)


def pooled(runs: Sequence[RunFolder]) -> list[Group]:
    """The baselines on pooled rows that stand beside any of the runs. One that comes out the same
    beside several (on the same rows, with the same settings) is there once."""
    found: dict[str, Group] = {}
    for run in runs:
        for part, records in run.records.items():
            if not records or not (records[-1].get("notes") or {}).get("pooled"):
                continue
            label = words.part_name(run, part)
            group = Group(label, label, (run,), part)
            found.setdefault(json.dumps([part, records[-1]["metrics"]]), group)
    return _distinct(list(found.values()))


def _distinct(groups: list[Group]) -> list[Group]:
    """Where labels are alike, the folder's path is added."""
    count = Counter(group.label for group in groups)
    distinct = []
    for group in groups:
        tail = f" ({group.runs[0].path.as_posix()})" if count[group.label] > 1 else ""
        distinct.append(replace(group, label=group.label + tail, short=group.short + tail))
    return distinct


def seed(run: RunFolder) -> Any:
    engine = (run.manifest.get("config") or {}).get("engine") or {}
    return run.manifest.get("seed", engine.get("seed"))


def _settings(run: RunFolder) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of all settings that can change what a run learns."""
    yield "algorithm", run.main
    for name, value in _leaves(run.manifest.get("config") or {}):
        parts = name.split(".")
        prefixes = {".".join(parts[: n + 1]) for n in range(len(parts))}
        if not prefixes & IGNORED and name not in ("algorithm", "algorithm.name"):
            yield name, value
    for file, checksum in (run.manifest.get("sources") or {}).items():
        yield f"file {file}", str(checksum)[:8]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _label(
    setting: Mapping[str, Any], differ: Sequence[str], run: RunFolder, shorten: bool = False
) -> str:
    """The settings that differ between the runs, of this one."""
    last = Counter(name.rpartition(".")[2] for name in differ)
    said = []
    for name in differ:
        word = name.rpartition(".")[2]
        shown = word if shorten and last[word] == 1 and not name.startswith("file ") else name
        said.append(f"{shown}={_flat(setting[name])}" if name in setting else f"no {shown}")
    return ", ".join(said) or run.title


def _flat(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(_flat, value)) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def _cell(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def _curve(group: Group, metric: str, axis: Axis) -> Curve:
    """The curve of one run, or the mean of several with a band."""
    if len(group.runs) == 1:
        return curve(group.records[0], metric, axis)
    xs, means, low, high = [], [], [], []
    for records in zip(*group.records, strict=True):
        places = [place for record in records if (place := at(record, axis)) is not None]
        values = _defined(records, metric)
        if places and values:
            xs.append(sum(places) / len(places))
            means.append(sum(values) / len(values))
            low.append(min(values))
            high.append(max(values))
    return Curve(xs, means, low, high, f"{len(group.runs)} seeds, min to max")


def _defined(records: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    return [v for record in records if (v := words.value_of(record, metric)) is not None]


def _rows(groups: Sequence[Group], metric: str) -> list[dict[str, Any]]:
    """A row for each group. Single runs are judged against the first group, on the same resamples
    of the same test rows."""
    rows = [_row(group, metric) for group in groups]
    first = _resampled(groups[0], metric)
    for row, group in zip(rows, groups, strict=True):
        own = None if group is groups[0] else _resampled(group, metric)
        row["against_first"] = None
        if own is not None and first is not None and own[0] == first[0]:
            row["against_first"] = own[1].minus(first[1]).order(words.smaller_is_better(metric))
    return rows


def _resampled(group: Group, metric: str) -> tuple[str, Resampled] | None:
    """Which rows a single run was judged on, and the metric on resamples of them."""
    (run, *others) = group.runs
    found = Predictions.read(run.folder_of(group.part or run.main))
    if others or found is None or metric not in found.metrics:
        return None
    own = found.resampled([metric]).get(metric)
    return None if own is None else (found.rows, own)


def _row(group: Group, metric: str) -> dict[str, Any]:
    """Numbers of the last round that all runs of a group recorded, as their mean."""
    lasts = [records[-1] for records in group.records if records]
    results = group.results
    finals = _defined(results, metric)
    bests = [best for records in group.records if (best := words.best(records, metric))]
    return {
        "label": group.label,
        "baseline": group.part,
        "runs": len(group.runs),
        "seeds": [seed(run) for run in group.runs],
        "folders": [run.path.as_posix() for run in group.runs],
        "finished": all(run.finished for run in group.runs),
        "rounds": lasts[0]["round"] if lasts else 0,
        "metric": metric,
        "final": _mean(finals),
        "final_min": min(finals, default=None),
        "final_max": max(finals, default=None),
        "interval": _interval(results, metric),
        "best": _mean([value for value, _ in bests]),
        "train_loss": _mean(_defined(results, "train_loss")),
        "time": _mean([words.number(last.get("time")) for last in lasts]),
        "bytes_inside_silos": _mean([last["bytes"].get("bottom", 0) for last in lasts]),
        "bytes_between_hubs": _mean([last["bytes"].get("top", 0) for last in lasts]),
    }


def _interval(lasts: Sequence[Mapping[str, Any]], metric: str) -> list[float] | None:
    """The 95 % bootstrap interval of a single run's metric."""
    found = (lasts[0].get("intervals") or {}).get(metric) if len(lasts) == 1 else None
    return None if found is None else list(found)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """A row for people."""
    metric, several = row["metric"], row["runs"] > 1 and row["final"] is not None
    nothing = dict.fromkeys(("rounds", "best", "bottom", "top"), words.DASH)
    return {
        "label": row["label"] + (f" (mean of {row['runs']} seeds)" if row["runs"] > 1 else ""),
        "status": "" if row["finished"] else "not finished",
        "rounds": f"{row['rounds']:,}",
        "final": words.show(metric, row["final"]),
        "spread": words.spread(metric, [row["final_min"], row["final_max"]])
        if several
        else words.between(metric, row["interval"]),
        "against": row["against_first"] or words.DASH,
        "best": words.show(metric, row["best"]),
        "loss": words.show("train_loss", row["train_loss"]),
        "bottom": words.size(row["bytes_inside_silos"] or 0),
        "top": words.size(row["bytes_between_hubs"] or 0),
    } | (nothing if row["baseline"] else {})
