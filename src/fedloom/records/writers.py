"""Records for other tools: TensorBoard and MLflow, each an extra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ..core.errors import SettingError
from .record import Record


class Writer(Protocol):
    """Takes one record after the other."""

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


class TensorBoard:
    """Event files in a folder."""

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingError("tensorboard: pip install 'fedloom[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder))

    def write(self, record: Record) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of a tracking server or database."""

    def __init__(self, address: str, name: str, config: Mapping[str, Mapping[str, Any]]):
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
        self._run = self._client.create_run(number, run_name=name).info.run_id
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
    events: Path | None, mlflow: str | None, name: str, config: Mapping[str, Mapping[str, Any]]
) -> Iterator[list[Writer]]:
    """The writers that a run file asks for."""
    writers: list[Writer] = []
    try:
        if events is not None:
            writers.append(TensorBoard(events))
        if mlflow is not None:
            writers.append(MLflow(mlflow, name, config))
        yield writers
    finally:
        for writer in writers:
            writer.close()
