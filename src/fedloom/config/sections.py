"""The sections of a run file and their keys.

Most keys are not declared here: they are the settings of the data set, the model and the algorithm
that a section names, and the fields of `Partition` and `Network`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ..core.arithmetic import Precision
from ..core.checked import Checked
from ..core.errors import SettingError
from ..core.registry import (
    Registry,
    algorithms,
    datasets,
    horizontal_partitioners,
    losses,
    models,
    vertical_partitioners,
    writers,
)
from ..core.settings import (
    BadKey,
    Count,
    Field,
    KeyPath,
    NotNegative,
    Share,
    above,
    at_least,
    fields_of,
    inside,
)
from ..data import datasets as _sets  # noqa: F401  (registers the data sets)
from ..data.partition.partition import Partition
from ..data.tables.read import read_tables
from ..fabric.simclock.clock import Network
from ..models.losses.choose import unknown_setting
from ..models.task import Combine
from ..models.threshold import Threshold
from .convert import construct, table

FILLED = (
    "inputs",
    "shape",
    "views",
    "channels",
    "size",
    "outputs",
    "flatten",
)  # a model's settings that follow from the data

PooledName = Literal["best-pooled", "logistic", "ridge", "boosting"]  # no federation
Baseline = Literal["central", "alone", "no-exchange", PooledName]
Contributions = Literal["off", "replaced", "retrained"]


@dataclass(frozen=True)
class EngineSettings:
    """How the run is computed."""

    name: Annotated[
        Literal["stacked", "reference"],
        "`stacked` is fast, `reference` runs every party by itself, slowly",
    ] = "stacked"
    seed: Annotated[int, "of the initial weights, the minibatches and who is present"] = 0
    precision: Annotated[
        Precision,
        "of the model and its arithmetic; `tf32` and `bf16`: the model stays float32, its products "
        "have fewer digits",
    ] = "float32"
    device: Annotated[str, "`cpu`, `cuda`, `cuda:0`, ..."] = "cpu"
    chunk: Annotated[int | None, at_least(1), "clients run at once; none: by their size"] = None
    replay: Annotated[
        int, at_least(0), "calls (of 20 ms in the mean) after which local work is traced; 0: never"
    ] = 150
    compile: Annotated[
        bool, "compile clients' work: on a CPU in a second or two, on a GPU in some minutes"
    ] = False
    executor: Annotated[
        str | None,
        "what executes clients' work, in place of `replay` and `compile`: `plain`, `traced`, "
        "`compiled`, `native`, or a registered one",
    ] = None
    presence: Annotated[Share, "the share of clients present in a round, drawn anew each round"] = (
        1.0
    )
    schedule: Annotated[
        str | None,
        "schedule.json of another run: who is there, and who visits a master when, as then",
    ] = None
    order: Annotated[
        Literal["drawn", "arrival"],
        "who visits a master next, among real parties: drawn, or whoever is free first",
    ] = "drawn"
    threads: Annotated[int | None, at_least(1), "CPU threads; none: torch's choice"] = None


@dataclass(frozen=True)
class Evaluation:
    """When the model is evaluated, and which baselines it is compared with."""

    every: Annotated[
        int | None, at_least(1), "rounds between evaluations; none: about 20 in all"
    ] = None
    baselines: Annotated[
        tuple[Baseline, ...],
        "what else to train on the same rows: `central` (pooled, the same budget), `alone` (every "
        "silo for itself), `no-exchange` (lone silos, scores combined), `best-pooled` (the same "
        "network on pooled rows, to convergence), `logistic` or `ridge` (regression), `boosting`",
    ] = ()
    contributions: Annotated[
        Contributions | None,
        "what each silo adds to the joint model: `replaced` (its embedding by its mean, when "
        "predicting), `retrained` (also trained without it: a run for each silo), `off`; none: "
        "`replaced` where that can be",
    ] = None
    metrics: Annotated[
        tuple[str, ...],
        "what else to measure on test rows, besides what is usual: `fedloom list metrics`",
    ] = ()
    threshold: Annotated[
        Threshold,
        "of two classes: the probability above which a row is said to be of the second; or chosen "
        "on validation rows, for the best `f1`, `balanced` accuracy or `accuracy`, or for the "
        "lowest cost: `{missed = 5, false_alarm = 1}`",
    ] = 0.5
    rows: Annotated[int | None, at_least(1), "rows predicted at a time; none: by their size"] = None
    diverged: Annotated[
        float | None,
        above(1),
        "the run stops where the training loss is above so many times its start; none: never",
    ] = 10.0


@dataclass(frozen=True)
class Stopping(Checked):
    """When training ends before its last round, by the validation rows. The best model is kept."""

    patience: Annotated[Count, "evaluations in a row without an improvement"] = 5
    metric: Annotated[
        str,
        "`loss`, or a metric. A client's labels of validation rows stay with it for the loss, and "
        "go to its own hub for a metric",
    ] = "loss"
    least: Annotated[NotNegative, "what an improvement must be more than"] = 0.0


@dataclass(frozen=True)
class Output:
    """Which files are written, and where."""

    folder: Annotated[str | None, "the run's folder; none: `runs/` and the run file's name"] = None
    title: Annotated[str | None, "of the report"] = None
    checkpoint_every: Annotated[
        int | None, at_least(1), "rounds between checkpoints; none: as often as evaluated"
    ] = None
    report: Annotated[bool, "write the HTML report at the end"] = True
    tensorboard: Annotated[bool, "also write TensorBoard events (extra `tensorboard`)"] = False
    mlflow: Annotated[
        str | None,
        "also log to this MLflow address: `sqlite:///mlflow.db`, or a server's (extra `mlflow`)",
    ] = None
    writers: Annotated[
        dict[str, dict[str, Any]],
        "records for other tools, by name, each with its settings: `writers.csv = {}`; see below",
    ] = field(default_factory=dict)

    @property
    def asked_writers(self) -> dict[str, dict[str, Any]]:
        """All of them: {name: settings}."""
        asked: dict[str, dict[str, Any]] = {"tensorboard": {}} if self.tensorboard else {}
        if self.mlflow is not None:
            asked["mlflow"] = {"address": self.mlflow}
        return {**asked, **self.writers}


VALIDATION = Field(
    "validation",
    float | None,
    None,
    "share of the training rows kept back for [stopping] and sweeps, by a hash of the id",
    inside(0, 1),
)
NAMED = {
    "name": Field("name", str, about="a registered set: `fedloom list datasets`"),
    "folder": Field("folder", str | None, None, "where its files are; none: FEDLOOM_DATA"),
    "verify": Field("verify", bool, True, "check the files against their checksums"),
    "take": Field(
        "take",
        int | None,
        None,
        "so many training rows, test rows in proportion; none: all",
        at_least(1),
    ),
    "validation": VALIDATION,
}
OWN = {
    "silos": Field(
        "silos",
        dict[str, dict[str, str] | str],
        about="your own tables: `[data.silos.bank]` with a CSV or Parquet file for each client",
    ),
    **fields_of(read_tables, without=("files", "salt")),
    "salt_file": Field("salt_file", str | None, None, "file with the salt of hashed ids"),
    "validation": VALIDATION,
}
MODEL = {
    "name": Field("name", str, "linear", "a registered model: `fedloom list models`"),
    "loss": Field(
        "loss",
        str | dict[str, Any] | None,
        None,
        "a registered loss: `fedloom list losses`, or a table with its name and settings; none: by "
        "the goal of the data",
    ),
    "combine": Field("combine", Combine, "sum", "how the silos' embeddings meet"),
    "embedding": Field(
        "embedding", int | None, None, "width of each silo's embedding; needs a head", at_least(1)
    ),
    "head": Field("head", dict[str, Any] | None, None, "a model over the joint embedding"),
    "middle": Field(
        "middle", dict[str, Any] | None, None, "a model before the head, as wide as an embedding"
    ),
    "silos": Field("silos", dict[str, dict[str, Any]], {}, "other settings for some silos"),
}
RUN = {
    "name": Field("name", str, "tdcd", "a registered algorithm: `fedloom list algorithms`"),
    "rounds": Field("rounds", int | None, 100, "communication rounds", at_least(1)),
    "epochs": Field(
        "epochs",
        float | None,
        None,
        "in place of `rounds`: how often the minibatches have as many rows as there are for "
        "training; rounded up to whole rounds",
        above(0),
    ),
}
ROUNDS = ("rounds", "epochs")
FIRST_RUN: dict[str, dict[str, Any]] = {  # see docs/defaults.md, and benchmarks/defaults.py
    "model": {"name": "mlp", "hidden": [32]},
    "algorithm": {
        "name": "tdcd",
        "local_steps": 5,
        "lr": 0.05,
        "minibatch": "fresh",
        "hub": {"name": "adam", "lr": 0.01},
        "rounds": 1000,
    },
}
CUT_FILE = Field("file", str | None, None, "take the cut from this file, written by another run")


def first_run(section: str, overrides: Any) -> Any:
    """What a file that leaves out a section gets: settings that suit tables, unless an override
    names something else."""
    if not isinstance(overrides, Mapping) or "name" in overrides:
        return overrides
    known = FIRST_RUN[section]
    if "epochs" in overrides:
        known = {key: value for key, value in known.items() if key != "rounds"}
    return {**known, **overrides}


def data_fields(values: Mapping[str, Any], path: KeyPath) -> dict[str, Field]:
    if "silos" in values:
        return OWN
    if "name" not in values:
        raise BadKey(path, "give `name` (a registered data set) or `silos` (your own tables)")
    entry = known(datasets, values["name"], (*path, "name"))
    return {**NAMED, **fields_of(entry.load, without=("files",))}


def model_settings(name: Any, path: KeyPath) -> dict[str, Field]:
    """The settings of a model that a run file may set."""
    return fields_of(known(models, name, (*path, "name")), without=FILLED)


def model_table(values: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    name = values.get("name", MODEL["name"].default)
    complete = table({**MODEL, **model_settings(name, path)}, values, path)
    for silo, other in complete["silos"].items():
        where = (*path, "silos", silo)
        own = model_settings(other.get("name", name), where)
        if other.get("name", name) == name:  # defaults are those of the section
            own = {key: Field(key, f.hint, complete[key], f.about) for key, f in own.items()}
        complete["silos"][silo] = table({"name": Field("name", str, name), **own}, other, where)
    for key in ("head", "middle"):
        if complete[key] is not None:
            where, top = (*path, key), complete[key]
            fields = {"name": Field("name", str, "linear")}
            fields |= model_settings(top.get("name", "linear"), where)
            complete[key] = table(fields, top, where)
    complete["loss"] = _loss(complete["loss"], (*path, "loss"))
    return complete


def _loss(given: str | Mapping[str, Any] | None, path: KeyPath) -> str | dict[str, Any] | None:
    """A loss by name stays as it is; one with settings gets the others' defaults."""
    if given is None:
        return None
    values: Mapping[str, Any] = {"name": given} if isinstance(given, str) else given
    if "name" not in values:
        raise BadKey(path, "say its `name`: `fedloom list losses`")
    known(losses, values["name"], (*path, "name") if values is given else path)
    for key in values:
        if key != "name" and key not in losses.settings(values["name"]):
            raise BadKey((*path, key), unknown_setting(values["name"], key))
    complete = table(_named_fields(losses, values["name"], path), values, path)
    settings = {key: value for key, value in complete.items() if key != "name"}
    construct(losses[values["name"]], settings, path)
    return given if isinstance(given, str) else complete


def algorithm_fields(values: Mapping[str, Any], path: KeyPath) -> dict[str, Field]:
    name = values.get("name", RUN["name"].default)
    return {**RUN, **fields_of(known(algorithms, name, (*path, "name")))}


def partition_fields() -> dict[str, Field]:
    return {**fields_of(Partition), "file": CUT_FILE}


def partition_table(values: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    complete = table(partition_fields(), values, path)
    for key, registry in (
        ("vertical", vertical_partitioners),
        ("horizontal", horizontal_partitioners),
    ):
        how, where = complete[key], (*path, key)
        if isinstance(how, Mapping):
            if "name" not in how:
                raise BadKey(where, f"say its `name`: `fedloom list {registry.plural}`")
            fields = _named_fields(registry, how["name"], (*where, "name"))
            complete[key] = table(fields, how, where)
        elif how is not None:
            table(_named_fields(registry, how, where), {"name": how}, where)
    return complete


def _named_fields(registry: Registry, name: Any, path: KeyPath) -> dict[str, Field]:
    known(registry, name, path)
    return {"name": Field("name", str), **registry.settings(name)}


def output_table(values: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    complete = table(fields_of(Output), values, path)
    for name, settings in complete["writers"].items():
        where = (*path, "writers", name)
        known(writers, name, where)
        complete["writers"][name] = table(writers.settings(name), settings, where)
    return complete


def network_fields() -> dict[str, Field]:
    return fields_of(Network)


def known(registry: Registry, name: Any, path: KeyPath) -> Any:
    """The registered object of this name; a BadKey where there is none."""
    try:
        return registry[name]
    except SettingError as problem:
        raise BadKey(path, str(problem)) from None


def about(thing: Any) -> str:
    """The first paragraph of an object's docstring, on one line."""
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split("\n\n")[0].split())
