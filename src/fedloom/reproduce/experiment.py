"""A figure or table of a paper, described: a run file, what is varied, axes, and what to expect.

papers/NAME.toml
  paper, item, title, claim     what is reproduced
  smaller, stand_in             how the default size, and the data, differ from the paper's
  seeds, iterations, every      of every run; iterations and every are local steps
  runs_of                       another description whose runs these are
  [run.data], [run.model] ...   the run file
  [vary.Q]                      an axis: key and values, or options: label -> tables
  [search]                      key, values and iterations of the grid search for a step size
  [[panel]]                     a part of the figure: x, y, perhaps t_comm and where
  [[expect]]                    what the paper says, as verdicts.py can judge it
  [reasons]                     by claim, why it likely does not hold at the default size, in place
                                of the reason for any size; [full.reasons] with --full
  [[number]]                    a number of the paper, to stand beside ours
  [full]                        what is different with --full, the paper's setting
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from ..config.runfile import SECTIONS, RunFile
from ..config.sections import algorithm_fields
from ..core.errors import SettingError, nearest
from ..core.toml import dumps

Tables = Mapping[str, Any]

SHARED = ("run", "vary", "search", "seeds", "iterations", "every", "metric", "smaller", "stand_in")


@dataclass(frozen=True)
class Setting:
    """One curve: its place on the axes that are varied, and its run file's tables."""

    place: Mapping[str, Any]
    words: Mapping[str, str]
    tables: Tables

    @property
    def name(self) -> str:
        return self.called(())

    def called(self, known: Mapping[str, Any] | tuple[str, ...]) -> str:
        """Its name where some axes are named elsewhere."""
        words = [word for axis, word in self.words.items() if axis not in known]
        return ", ".join(words) or ", ".join(self.words.values()) or "run"

    def is_at(self, where: Mapping[str, Any]) -> bool:
        return all(self.place.get(axis) == value for axis, value in where.items())


@dataclass(frozen=True)
class Experiment:
    """A description, in one of its two sizes."""

    name: str
    full: bool
    description: Tables
    only: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def read(name: str, full: bool = False, only: Mapping[str, str] | None = None) -> Experiment:
        """`only`: places on some axes, in words; other curves are left out."""
        tables = _read(name)
        if "runs_of" in tables:
            shared = _read(tables["runs_of"])
            tables = merged({key: shared[key] for key in SHARED if key in shared}, tables)
            tables["full"] = merged(shared.get("full", {}), tables.get("full", {}))
        if full:
            tables = merged(tables, tables.get("full", {}))
        for part in ("panel", "expect", "number"):
            tables[part] = [
                {**panel, "y": tables["metric"] if panel.get("y") == "metric" else panel.get("y")}
                for panel in tables.get(part, ())
            ]
        reasons = (tables.get("full", {}) if full else tables).get("reasons", {})
        tables["expect"] = [
            {**panel, "reason": reasons.get(panel["claim"], panel.get("reason", ""))}
            for panel in tables["expect"]
        ]
        experiment = Experiment(name, full, tables, dict(only or {}))
        if not experiment.settings:
            raise SettingError(f"{name}: no curve is at {dict(only or {})}")
        return experiment

    @property
    def runs_name(self) -> str:
        """The description whose runs these are, and the name of their folder."""
        return str(self.description.get("runs_of", self.name))

    @property
    def seeds(self) -> int:
        return int(self.description["seeds"])

    @property
    def title(self) -> str:
        return (
            f"{self.description['paper']} {self.description['item']}: {self.description['title']}"
        )

    @property
    def settings(self) -> list[Setting]:
        """All curves, in the order of the axes."""
        axes = {
            axis: _options(axis, axis_table)
            for axis, axis_table in self.description.get("vary", {}).items()
        }
        settings = []
        for chosen in itertools.product(*axes.values()):
            tables: Tables = self.description["run"]
            for _, _, over in chosen:
                tables = changed(tables, over)
            place = {axis: value for axis, (value, _, _) in zip(axes, chosen, strict=True)}
            words = {axis: word for axis, (_, word, _) in zip(axes, chosen, strict=True)}
            setting = Setting(place, words, tables)
            if all(str(place.get(axis)) == value for axis, value in self.only.items()):
                settings.append(setting)
        return settings

    def file(
        self, setting: Setting, seed: int, device: str | None, iterations: int | None = None
    ) -> RunFile:
        """The run file of one curve and seed; `iterations` in place of the description's."""
        over: dict[str, Any] = {"engine": {"seed": seed}, "partition": {"seed": seed}}
        over["evaluation"] = {"diverged": "none"}  # a curve is judged to its end
        if device is not None:
            over["engine"]["device"] = device
        tables = merged(setting.tables, over)
        steps = local_steps(tables)
        wanted = iterations or self.description.get("iterations")
        if wanted:
            rounds = math.ceil(wanted / steps)
            tables = merged(tables, {"algorithm": {"rounds": rounds}})
        if "every" in self.description:
            every = max(1, self.description["every"] // steps)
            tables = merged(tables, {"evaluation": {"every": every}})
        return RunFile.parse(dumps({name: tables[name] for name in SECTIONS if name in tables}))


def names() -> list[str]:
    """All descriptions, in the order of the papers."""
    return list(tomllib.loads((_folder() / "order.toml").read_text(encoding="utf-8"))["names"])


def _folder() -> Any:
    return files(__package__) / "papers"


def _read(name: str) -> dict[str, Any]:
    path = _folder() / f"{name}.toml"
    if not path.is_file():
        raise SettingError(f"unknown figure or table {name!r}{nearest(name, names())}")
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return _like(_read(tables["like"]), tables) if "like" in tables else tables


def _like(other: Tables, own: Tables) -> dict[str, Any]:
    """A description that begins from another. Its own `vary`, if there is one, and its own reasons
    replace the other's."""
    tables = merged(other, own)
    tables["reasons"] = own.get("reasons", {})
    if "run" in other:
        tables["run"] = changed(other["run"], own.get("run", {}))
    if "vary" in own:
        tables["vary"] = own["vary"]
        full = {key: value for key, value in other.get("full", {}).items() if key != "vary"}
        tables["full"] = merged(full, own.get("full", {}))
    return tables


def _options(axis: str, table: Tables) -> list[tuple[Any, str, Tables]]:
    """(value, in words, tables to lay over) of every place on an axis."""
    if "options" in table:
        return [
            (word, f"{axis} = {word}" if word.isdigit() else word, _option(table["options"], word))
            for word in table["options"]
        ]
    options = []
    for value in table["values"]:
        over: Any = value
        for part in reversed(table["key"].split(".")):
            over = {part: over}
        options.append((value, f"{axis} = {value}", over))
    return options


def _option(options: Tables, word: str) -> Tables:
    """The tables of an option; `like` names another that it begins from."""
    table = dict(options[word])
    other = table.pop("like", None)
    return table if other is None else merged(_option(options, other), table)


def merged(below: Tables, above: Tables) -> dict[str, Any]:
    """Tables laid over tables, key by key."""
    tables = dict(below)
    for key, value in above.items():
        known = tables.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        tables[key] = merged(known, value) if both else value  # type: ignore[arg-type]
    return tables


def changed(below: Tables, over: Tables) -> dict[str, Any]:
    """The same for a run file: another algorithm keeps those settings that it has, and another
    data set or model begins afresh."""
    below = dict(below)
    for section in ("data", "model"):
        if _renamed(below, over, section):
            below[section] = {}
    if _renamed(below, over, "algorithm"):
        known = algorithm_fields(over["algorithm"], ("algorithm",))
        below["algorithm"] = {k: v for k, v in below["algorithm"].items() if k in known}
    return merged(below, over)


def _renamed(below: Tables, over: Tables, section: str) -> bool:
    given = over.get(section, {}).get("name")
    return given is not None and given != below.get(section, {}).get("name")


def local_steps(tables: Tables) -> int:
    """Q of a run."""
    settings = tables.get("algorithm", {})
    field = algorithm_fields(settings, ("algorithm",)).get("local_steps")
    return int(settings.get("local_steps", field.default if field is not None else 1))
