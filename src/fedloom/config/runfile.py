"""A run file: reading, checks, overrides, and writing with every default filled in."""

from __future__ import annotations

import copy
import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algorithms.contract import Algorithm
from ..core.errors import SettingError, nearest
from ..core.registry import algorithms, metrics
from ..core.settings import BadKey, Field, fields_of
from ..core.toml import dumps
from ..data.partition.partition import Partition
from ..fabric.simclock.clock import Network
from ..models.threshold import check_threshold
from . import sections
from .convert import construct, plain_table, table
from .lines import key_lines, line_of
from .sections import EngineSettings, Evaluation, Output, Stopping

SECTIONS = (
    "data",
    "partition",
    "model",
    "algorithm",
    "engine",
    "network",
    "evaluation",
    "stopping",
    "output",
)
TABLES = {  # what names something that has settings of its own
    "model": sections.model_table,
    "partition": sections.partition_table,
    "output": sections.output_table,
}
PATHS = (("data", "folder"), ("data", "salt_file"), ("partition", "file"), ("engine", "schedule"))


@dataclass(frozen=True)
class RunFile:
    """The complete sections, each {key: value}. `source`: the path of the file."""

    values: Mapping[str, Mapping[str, Any]]
    source: Path | None = None

    @staticmethod
    def read(path: str | Path, overrides: Sequence[str] = ()) -> RunFile:
        """Read a file. `overrides`: texts "section.key=value"."""
        path = Path(path)
        if not path.exists():
            raise SettingError(f"there is no run file {path}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise SettingError(f"{path}: cannot be read ({problem})") from None
        return RunFile.parse(text, overrides, path)

    @staticmethod
    def parse(text: str, overrides: Sequence[str] = (), source: Path | None = None) -> RunFile:
        """Read TOML text. Its paths are relative to `source`, those of overrides to the working
        folder."""
        where = str(source) if source else "run file"
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as problem:
            raise SettingError(f"{where}: not valid TOML: {problem}") from None
        left_out = [name for name in sections.FIRST_RUN if name not in raw]
        given = {override_key(raw, override) for override in overrides}
        try:
            for name in left_out:
                raw[name] = sections.first_run(name, raw.get(name, {}))
            return RunFile(_absolute(_complete(raw), source, given), source)
        except BadKey as problem:
            name = ".".join(problem.path)
            line = line_of(problem.path, key_lines(text))
            if any(_concerns(key, problem.path, line) for key in given):
                raise SettingError(f"--set {name}: {problem.problem}") from None
            at = f"{where}:{line}" if line else where
            raise SettingError(f"{at}: {name}: {problem.problem}") from None

    # The sections as objects

    @property
    def algorithm(self) -> Algorithm:
        settings = dict(self.values["algorithm"])
        name = settings.pop("name")
        for key in sections.ROUNDS:
            settings.pop(key)
        return algorithms[name](**settings)

    @property
    def rounds(self) -> int:
        """How many are asked for. Where epochs are, `of_rows` says how many rounds these are."""
        rounds = self.values["algorithm"]["rounds"]
        if rounds is None:
            raise SettingError("epochs are rounds only once the number of training rows is known")
        return rounds

    @property
    def epochs(self) -> float | None:
        return self.values["algorithm"]["epochs"]

    def of_rows(self, rows: int) -> RunFile:
        """With rounds in place of epochs, for so many training rows."""
        if self.epochs is None:
            return self
        rounds = math.ceil(self.epochs * rows / self.algorithm.rows_of_round(rows) - 1e-9)
        return self.replaced("algorithm", rounds=max(1, rounds), epochs=None)

    def epochs_of(self, rows: int) -> float:
        """How often the minibatches of all rounds have as many rows as there are for training."""
        return self.of_rows(rows).rounds * self.algorithm.rows_of_round(rows) / rows

    @property
    def partition(self) -> Partition:
        settings = {key: v for key, v in self.values["partition"].items() if key != "file"}
        return Partition(**settings)

    @property
    def engine(self) -> EngineSettings:
        return EngineSettings(**self.values["engine"])

    @property
    def network(self) -> Network:
        return Network(**self.values["network"])

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation(**self.values["evaluation"])

    @property
    def stopping(self) -> Stopping | None:
        """None: training goes on to its last round."""
        settings = self.values["stopping"]
        return Stopping(**settings) if settings else None

    def without_stopping(self) -> RunFile:
        return RunFile({**self.values, "stopping": {}}, self.source)

    @property
    def output(self) -> Output:
        return Output(**self.values["output"])

    @property
    def every(self) -> int:
        """Rounds between evaluations."""
        return self.evaluation.every or max(1, self.rounds // 20)

    @property
    def checkpoint_every(self) -> int:
        """Rounds between checkpoints."""
        return self.output.checkpoint_every or self.every

    def replaced(self, section: str, **values: Any) -> RunFile:
        """A copy with other values in one section. Paths are relative to the working folder."""
        folder = Path.cwd()
        for name, value in values.items():
            if (section, name) in PATHS and value is not None:
                values[name] = str(folder / value)
        return RunFile({**self.values, section: {**self.values[section], **values}}, self.source)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """All sections, as TOML values."""
        written = {}
        for name in SECTIONS:
            if name == "partition" and "silos" in self.values["data"]:
                continue  # tables are partitioned already
            if name == "stopping" and not self.values[name]:
                continue  # it is on where it is there
            values = self.values[name]
            shown = plain_table(_fields(name, values), values)
            written[name] = {key: v for key, v in shown.items() if v != {}}
        return written

    def to_toml(self) -> str:
        return dumps(self.to_dict())


def _concerns(key: tuple[str, ...], path: tuple[str, ...], line: int | None) -> bool:
    """Whether an override is the cause of a problem: it set the key or a table around it, or it
    made a table that the file does not have."""
    return path[: len(key)] == key or (line is None and bool(path) and key[: len(path)] == path)


def override_key(raw: dict[str, Any], text: str) -> tuple[str, ...]:
    """Apply an override "a.b.c=value" to the tables. The value is TOML, or else text."""
    key, sign, value = text.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not sign or len(parts) < 2 or not all(parts):
        raise SettingError(f"--set {text}: section.key=value is expected")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    target = raw
    for part in parts[:-1]:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise SettingError(f"--set {text}: {part} is not a table")
    target[parts[-1]] = parsed
    return parts


def _fields(section: str, values: Mapping[str, Any]) -> dict[str, Field]:
    path = (section,)
    match section:
        case "data":
            return sections.data_fields(values, path)
        case "partition":
            return sections.partition_fields()
        case "model":
            name = values.get("name", sections.MODEL["name"].default)
            return {**sections.MODEL, **sections.model_settings(name, path)}
        case "algorithm":
            return sections.algorithm_fields(values, path)
        case "network":
            return sections.network_fields()
    return fields_of(
        {
            "engine": EngineSettings,
            "evaluation": Evaluation,
            "stopping": Stopping,
            "output": Output,
        }[section]
    )


def _complete(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    for name, values in raw.items():
        if name not in SECTIONS:
            raise BadKey((name,), f"unknown section{nearest(name, SECTIONS)}")
        if not isinstance(values, Mapping):
            raise BadKey((name,), f"a section [{name}] is expected")
    if "data" not in raw:
        raise BadKey((), "the section [data] is missing")
    if "silos" in raw["data"] and raw.get("partition"):
        raise BadKey(("partition",), "your own tables are cut already: leave this section out")
    complete: dict[str, dict[str, Any]] = {}
    for name in SECTIONS:
        values, path = raw.get(name, {}), (name,)
        if name == "stopping" and name not in raw:
            complete[name] = {}
        elif name in TABLES:
            complete[name] = TABLES[name](values, path)
        else:
            complete[name] = table(_fields(name, values), values, path)
    _one_of_both(raw.get("algorithm", {}), complete["algorithm"])
    _check_together(complete)
    return complete


def _one_of_both(given: Mapping[str, Any], complete: dict[str, Any]) -> None:
    """Rounds or epochs."""
    if complete["epochs"] is None:
        if complete["rounds"] is None:
            raise BadKey(("algorithm", "rounds"), "say how many `rounds`, or how many `epochs`")
        return
    if "rounds" not in given:
        complete["rounds"] = None
    if complete["rounds"] is not None:
        raise BadKey(("algorithm", "epochs"), "give `rounds` or `epochs`, not both")


def _check_together(values: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse settings that contradict each other, and unknown names."""
    own = {k: v for k, v in values["algorithm"].items() if k not in sections.RUN}
    stopping, held = values["stopping"], values["data"]["validation"]
    if stopping and held is None:
        cure = "there are no validation rows to stop by: keep some back, `validation = 0.15` in"
        raise BadKey(("stopping",), f"{cure} [data]")
    if stopping and stopping["metric"] != "loss":
        sections.known(metrics, stopping["metric"], ("stopping", "metric"))
    construct(algorithms[values["algorithm"]["name"]], own, ("algorithm",))
    construct(Network, values["network"], ("network",))
    for name in values["evaluation"]["metrics"]:
        sections.known(metrics, name, ("evaluation", "metrics"))
    if values["partition"]["views"] is not None and values["data"]["validation"] is not None:
        raise BadKey(
            ("data", "validation"),
            "with [partition.views], copies of one thing would be among training and validation "
            "rows: leave it out",
        )
    try:
        check_threshold(values["evaluation"]["threshold"])
    except SettingError as problem:
        raise BadKey(("evaluation", "threshold"), str(problem)) from None
    if len(set(values["evaluation"]["baselines"])) < len(values["evaluation"]["baselines"]):
        raise BadKey(("evaluation", "baselines"), "a baseline is named twice")


def _absolute(
    values: dict[str, dict[str, Any]], source: Path | None, given: Collection[tuple[str, ...]]
) -> dict[str, dict[str, Any]]:
    """Make paths absolute. Paths in the run file are relative to it; those `given` on the command
    line are relative to the working folder."""
    folder = Path.cwd()
    beside = folder if source is None else source.parent.resolve()

    def whole(path: tuple[str, ...], file: str) -> str:
        named_there = any(path[: len(key)] == key for key in given)
        return str((folder if named_there else beside) / file)

    values = copy.deepcopy(values)
    for section, key in PATHS:
        if values[section].get(key) is not None:
            values[section][key] = whole((section, key), values[section][key])
    silos = values["data"].get("silos", {})
    for silo, files in silos.items():
        at = ("data", "silos", silo)
        if isinstance(files, str):
            silos[silo] = whole(at, files)
        else:
            silos[silo] = {client: whole((*at, client), file) for client, file in files.items()}
    return values
