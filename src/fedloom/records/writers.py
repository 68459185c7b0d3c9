"""Records for other tools, while a run goes on: TensorBoard and MLflow, each an extra.

A writer is made by what is registered under its name, of the folder of the run (or of a baseline),
its title and the resolved run file; its other parameters are keys of `[output.writers.NAME]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

from ..core.errors import SettingError
from ..core.registry import writers as registered
from .record import Record

Config = Mapping[str, Mapping[str, Any]]  # a run file's sections


class Writer(Protocol):
    """Takes one record after the other. A run that goes on after a stop makes the records since
    its last checkpoint again, and writes them again."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


def numbers(record: Record) -> dict[str, float]:
    """A record's numbers by name."""
    named: dict[str, float | None] = {
        "train_loss": record.train_loss,
        "time": record.time,
        "wall": record.wall,
        "iteration": record.iteration,
        **{f"bytes/{tier}": size for tier, size in record.bytes.items()},
        **{f"test/{name}": value for name, value in record.metrics.items()},
    }
    return {name: float(value) for name, value in named.items() if value is not None}


@registered.register("tensorboard")
class TensorBoard:
    """Event files in the run's folder (extra `tensorboard`)."""

    def __init__(self, folder: Path, title: str, config: Config):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingError("tensorboard: pip install 'fedloom[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, record: Record) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        self._writer.close()


@registered.register("mlflow")
class MLflow:
    """A run of an MLflow server or database (extra `mlflow`)."""

    def __init__(
        self,
        folder: Path,
        title: str,
        config: Config,
        address: Annotated[str, "`sqlite:///mlflow.db`, or a server's"],
    ):
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise SettingError("mlflow: pip install 'fedloom[mlflow]'") from None
        try:
            self._client = MlflowClient(tracking_uri=address)
            known = self._client.get_experiment_by_name("fedloom")
            number = known.experiment_id if known else self._client.create_experiment("fedloom")
        except MlflowException as problem:
            raise SettingError(f"mlflow: {address} cannot be used ({problem})") from None
        self._run = self._client.create_run(number, run_name=title).info.run_id
        for section in ("algorithm", "engine"):
            for key, value in config.get(section, {}).items():
                self._client.log_param(self._run, f"{section}.{key}", value)

    def write(self, record: Record) -> None:
        for name, value in numbers(record).items():
            self._client.log_metric(self._run, name, value, step=record.round)

    def close(self) -> None:
        self._client.set_terminated(self._run)


@contextmanager
def open_writers(
    asked: Mapping[str, Mapping[str, Any]], folder: Path, title: str, config: Config
) -> Iterator[list[Writer]]:
    """The writers that a run file asks for: {name: settings}."""
    writers: list[Writer] = []
    try:
        for name, settings in asked.items():
            writers.append(registered[name](folder, title, config, **settings))
        yield writers
    finally:
        for writer in writers:
            writer.close()
