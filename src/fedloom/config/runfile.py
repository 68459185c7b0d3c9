"""A run file: read, checked, overridden, written back with every default filled in."""

from __future__ import annotations

import copy
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
from . import sections
from .convert import made, plain_table, table
from .lines import key_lines, line_of
from .sections import Engine, Evaluation, Output

SECTIONS = (
    "data",
    "partition",
    "model",
    "algorithm",
    "engine",
    "network",
    "evaluation",
    "output",
)
PATHS = (("data", "folder"), ("data", "salt_file"), ("partition", "file"), ("engine", "schedule"))


@dataclass(frozen=True)
class RunFile:
    """The sections, each {key: value}, complete. `source` is where it came from."""

    values: Mapping[str, Mapping[str, Any]]
    source: Path | None = None

    @staticmethod
    def read(path: str | Path, overrides: Sequence[str] = ()) -> RunFile:
        """From a file; `overrides` are "section.key=value" texts."""
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
        """From TOML text; paths in it are relative to the file it came from, those of overrides to
        the working folder."""
        where = str(source) if source else "run file"
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as problem:
            raise SettingError(f"{where}: not valid TOML: {problem}") from None
        given = {override_key(raw, override) for override in overrides}
        try:
            return RunFile(_absolute(_checked(raw), source, given), source)
        except BadKey as problem:
            name = ".".join(problem.path)
            line = line_of(problem.path, key_lines(text))
            if any(_about(key, problem.path, line) for key in given):
                raise SettingError(f"--set {name}: {problem.problem}") from None
            at = f"{where}:{line}" if line else where
            raise SettingError(f"{at}: {name}: {problem.problem}") from None

    # What it says

    @property
    def algorithm(self) -> Algorithm:
        settings = dict(self.values["algorithm"])
        name = settings.pop("name")
        settings.pop("rounds")
        return algorithms[name](**settings)

    @property
    def rounds(self) -> int:
        return self.values["algorithm"]["rounds"]

    @property
    def partition(self) -> Partition:
        settings = {key: v for key, v in self.values["partition"].items() if key != "file"}
        return Partition(**settings)

    @property
    def engine(self) -> Engine:
        return Engine(**self.values["engine"])

    @property
    def network(self) -> Network:
        return Network(**self.values["network"])

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation(**self.values["evaluation"])

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
        """The same with other values in one section; paths are relative to the working folder."""
        here = Path.cwd()
        for name, value in values.items():
            if (section, name) in PATHS and value is not None:
                values[name] = str(here / value)
        return RunFile({**self.values, section: {**self.values[section], **values}}, self.source)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """All sections, as TOML can say them."""
        told = {}
        for name in SECTIONS:
            if name == "partition" and "silos" in self.values["data"]:
                continue  # tables are cut already
            values = self.values[name]
            shown = plain_table(_fields(name, values), values)
            told[name] = {key: v for key, v in shown.items() if v != {}}
        return told

    def to_toml(self) -> str:
        return dumps(self.to_dict())


def _about(key: tuple[str, ...], path: tuple[str, ...], line: int | None) -> bool:
    """Whether an override is what a problem is about: it set the key or a table around it, or made
    a table that the file does not have."""
    return path[: len(key)] == key or (line is None and bool(path) and key[: len(path)] == path)


def override_key(raw: dict[str, Any], text: str) -> tuple[str, ...]:
    """Write "a.b.c=value" into the tables; the value is TOML, or plain text."""
    key, sign, value = text.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not sign or len(parts) < 2 or not all(parts):
        raise SettingError(f"--set {text}: section.key=value is expected")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    here = raw
    for part in parts[:-1]:
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            raise SettingError(f"--set {text}: {part} is not a table")
    here[parts[-1]] = parsed
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
    return fields_of({"engine": Engine, "evaluation": Evaluation, "output": Output}[section])


def _checked(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    for name, values in raw.items():
        if name not in SECTIONS:
            raise BadKey((name,), f"unknown section{nearest(name, SECTIONS)}")
        if not isinstance(values, Mapping):
            raise BadKey((name,), f"a section [{name}] is expected")
    if "data" not in raw:
        raise BadKey((), "the section [data] is missing")
    if "silos" in raw["data"] and raw.get("partition"):
        raise BadKey(("partition",), "your own tables are cut already: leave this section out")
    found = {}
    for name in SECTIONS:
        values, path = raw.get(name, {}), (name,)
        if name == "model":
            found[name] = sections.model_table(values, path)
        else:
            found[name] = table(_fields(name, values), values, path)
    _sound(found)
    return found


def _sound(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Settings that do not go together, and names that nobody has registered."""
    own = {k: v for k, v in found["algorithm"].items() if k not in sections.RUN}
    made(algorithms[found["algorithm"]["name"]], own, ("algorithm",))
    made(Network, found["network"], ("network",))
    for name in found["evaluation"]["metrics"]:
        sections.known(metrics, name, ("evaluation", "metrics"))
    if len(set(found["evaluation"]["baselines"])) < len(found["evaluation"]["baselines"]):
        raise BadKey(("evaluation", "baselines"), "a baseline is named twice")


def _absolute(
    found: dict[str, dict[str, Any]], source: Path | None, given: Collection[tuple[str, ...]]
) -> dict[str, dict[str, Any]]:
    """Files by their whole paths: those that the run file names are relative to it, wherever the
    run is started from; those `given` on the command line to the working folder."""
    here = Path.cwd()
    beside = here if source is None else source.parent.resolve()

    def whole(path: tuple[str, ...], file: str) -> str:
        named_there = any(path[: len(key)] == key for key in given)
        return str((here if named_there else beside) / file)

    found = copy.deepcopy(found)
    for section, key in PATHS:
        if found[section].get(key) is not None:
            found[section][key] = whole((section, key), found[section][key])
    silos = found["data"].get("silos", {})
    for silo, files in silos.items():
        at = ("data", "silos", silo)
        if isinstance(files, str):
            silos[silo] = whole(at, files)
        else:
            silos[silo] = {client: whole((*at, client), file) for client, file in files.items()}
    return found
