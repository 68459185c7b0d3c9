"""From a run file to a run: data, placement, task, algorithm, baselines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import torch

from ..algorithms import Alone, Central, HyFEMAvg
from ..algorithms.contract import Algorithm
from ..config.runfile import RunFile
from ..config.sections import PooledName
from ..core.errors import DataError, InputError, SettingError
from ..core.files import read_secret
from ..core.rng import Secrets
from ..data import catalog
from ..data.federated import Federated
from ..data.partition.partition import Cut, place
from ..data.tables.read import read_tables
from ..engines.multiprocess.ranks import Ranks
from ..fabric.schedule import Drawn, Everyone, Recorded, Schedule
from ..models.task import Task
from .pooled.baseline import Pooled
from .run import Run

POOLED = get_args(PooledName)


def build_data(file: RunFile, cut: Cut | None = None) -> Federated:
    """The rows of a run file, placed; `cut` instead of drawing one."""
    data = _placed(file, cut)
    if (share := file.values["data"]["validation"]) is not None:
        data = data.with_validation(share)
    if "no-exchange" in same_baselines(file, data):
        (silo,) = labelled_silos(data)
        note = f"no-exchange is left out: only silo {silo} has labels, so it is the same as alone"
        return replace(data, notes=(*data.notes, note))
    return data


def labelled_silos(data: Federated) -> list[str]:
    return [silo for silo, y in data.train.y.items() if y is not None]


def same_baselines(file: RunFile, data: Federated) -> set[str]:
    """Baselines that would be another one again."""
    both = {"alone", "no-exchange"} <= set(file.evaluation.baselines)
    return {"no-exchange"} if both and len(labelled_silos(data)) == 1 else set()


def _placed(file: RunFile, cut: Cut | None) -> Federated:
    settings = {key: v for key, v in file.values["data"].items() if key != "validation"}
    if "silos" in settings:
        files, salt_file = settings.pop("silos"), settings.pop("salt_file")
        salt = None if salt_file is None else _salt(Path(salt_file))
        return read_tables(files, salt=salt, **settings)
    name, folder = settings.pop("name"), settings.pop("folder")
    verify, take = settings.pop("verify"), settings.pop("take")
    data = catalog.load(name, folder, verify, **settings)
    if take is not None:
        data = data.some(take)
    saved = file.values["partition"]["file"]
    if saved and file.partition.views is not None:
        raise SettingError("partition: a saved cut has no views; leave out `file` or `views`")
    if cut is None and saved:
        cut = Cut.load(saved)
    placed = file.partition.place(data) if cut is None else place(data, cut)
    notes = placed.notes or ((data.note,) if data.note else ())
    return replace(placed, sources=data.sources, notes=notes)


def _salt(path: Path) -> str:
    try:
        return read_secret(path, "salt_file").decode("utf-8").strip()
    except UnicodeDecodeError as problem:
        raise DataError(f"salt_file {path}: cannot be read ({problem})") from None


def build_task(file: RunFile, data: Federated) -> Task:
    settings = dict(file.values["model"])
    return Task.of(data, settings.pop("name"), **settings)


def build_algorithm(file: RunFile, algorithm: Algorithm | None = None) -> Algorithm:
    """The file's algorithm, or another, with what it takes from other sections."""
    own = algorithm or file.algorithm
    if isinstance(own, HyFEMAvg) and own.views is None:
        own = replace(own, views=file.partition.views)
    return own


def build_run(
    file: RunFile,
    data: Federated,
    task: Task | None = None,
    algorithm: Algorithm | None = None,
    ranks: Ranks | None = None,
    secrets: Secrets | None = None,
) -> Run:
    """A run that has not begun; `algorithm` in place of the file's own. `secrets`: of real parties,
    for the reference engine."""
    file = file.of_rows(data.train.size)
    engine, own = file.engine, build_algorithm(file, algorithm)
    if own.needs_server:
        data = data.with_server()
    run = Run(
        own,
        task or build_task(file, data),
        data,
        seed=engine.seed,
        engine=engine.name,
        schedule=build_schedule(file),
        precision=engine.precision,
        device=engine.device,
        chunk=engine.chunk,
        replay=engine.replay,
        compile=engine.compile,
        executor=engine.executor,
        network=file.network,
        metrics=file.evaluation.metrics,
        threshold=file.evaluation.threshold,
        ranks=ranks,
        secrets=secrets,
    )
    stopping = file.stopping
    return run if stopping is None else run.stop_early(stopping, file.every, file.rounds)


def build_schedule(file: RunFile) -> Schedule:
    """Who is there, as far as the file says."""
    engine = file.engine
    if engine.schedule is None:
        return Everyone() if engine.presence == 1 else Drawn(engine.presence, seed=engine.seed)
    if engine.presence != 1:
        raise SettingError("engine: schedule says who is there; leave out presence")
    recorded = Recorded.read(Path(engine.schedule))
    if recorded.rounds < file.rounds:
        raise SettingError(
            f"engine: {engine.schedule} has {recorded.rounds} rounds, {file.rounds} are asked for"
        )
    return recorded


def build_parts(file: RunFile, data: Federated, ranks: Ranks | None = None) -> dict[str, Run]:
    """The run itself, and its baselines with the settings they share with it."""
    if file.engine.threads is not None:
        torch.set_num_threads(file.engine.threads)
    task, own, main = build_task(file, data), file.algorithm, file.values["algorithm"]["name"]
    with of_part("algorithm", main):
        parts = {main: build_run(file, data, task, ranks=ranks)}
    labelled, again = labelled_silos(data), same_baselines(file, data)
    for name in (b for b in file.evaluation.baselines if b not in again and b not in POOLED):
        with of_part("baseline", name):
            if name in parts:
                raise SettingError("it is the algorithm itself")
            rows, use = data, task
            if name != "central" and len(labelled) < len(data.train.y):
                rows, use = data.only(labelled), task.only(labelled)  # who has none cannot train
            parts[name] = build_run(file, rows, use, baseline(name, own), ranks)
    return parts


def build_pooled(file: RunFile, data: Federated) -> dict[str, Pooled]:
    """The baselines that are no federation, checked and not trained yet."""
    engine, task = file.engine, build_task(file, data)
    parts: dict[str, Pooled] = {}
    for name in (b for b in POOLED if b in file.evaluation.baselines):
        with of_part("baseline", name):
            parts[name] = Pooled(
                name,
                task,
                data,
                seed=engine.seed,
                precision=engine.precision,
                device=engine.device,
                metrics=file.evaluation.metrics,
            )
    return parts


def baseline(name: str, own: Algorithm) -> Algorithm:
    """A baseline with the step sizes, minibatches and so on of the algorithm it stands beside."""
    kind: type[Any] = Central if name == "central" else Alone
    settings = {
        field.name: getattr(own, field.name)
        for field in fields(kind)
        if field.init and hasattr(own, field.name)
    }
    if kind is Alone:
        settings["combined"] = name == "no-exchange"
    return kind(**settings)


@contextmanager
def of_part(what: str, name: str) -> Iterator[None]:
    """Say which part of a run file an error is about."""
    try:
        yield
    except InputError as problem:
        raise type(problem)(f"{what} {name}: {problem}") from None
