"""A progress bar for runs from Python; plain text, so it works in notebooks too."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from ..records.record import Record


class Bar:
    """A bar over rounds, with the latest numbers beside it; nothing where it is not shown."""

    def __init__(self, rounds: int, done: int, show: bool, metric: str | None, name: str = ""):
        self._metric = metric
        self._bar: Any = tqdm(
            total=rounds,
            initial=done,
            desc=f"{name:12}" if name else None,
            unit="round",
            disable=not show,
            dynamic_ncols=True,
            bar_format="{desc}{percentage:3.0f}% |{bar}| {n}/{total} "
            "[{elapsed}<{remaining}]{postfix}",
        )

    @staticmethod
    def wanted() -> bool:
        """Whether somebody watches: a terminal, or a notebook."""
        return sys.stderr.isatty() or "ipykernel" in sys.modules

    def step(self, done: int) -> None:
        self._bar.update(done - self._bar.n)

    def say(self, record: Record) -> None:
        self._bar.set_postfix_str(said(record, self._metric))

    def close(self) -> None:
        self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def said(record: Record, metric: str | None) -> str:
    """The latest loss and headline metric."""
    value = record.metrics.get(metric) if metric else None
    tail = "" if value is None else f", {metric} {value:.4f}"
    return f"loss {record.train_loss:.4f}{tail}"
