"""What a run was made of, for whoever wants to make it again: manifest.json."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..config.runfile import RunFile
from ..core.errors import DataError
from ..core.files import SHARED, write_json
from ..data.federated import Federated
from ..models.losses import Loss
from ..models.losses.choose import described
from ..models.losses.weights import in_words

NAME = "manifest.json"
PACKAGES = ("fedloom", "torch", "numpy", "scikit-learn", "pyarrow", "safetensors")


@dataclass(frozen=True)
class Manifest:
    """The manifest as it stands in a folder."""

    values: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> Manifest | None:
        path = folder / NAME
        if not path.is_file():
            return None
        try:
            return Manifest(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as problem:
            raise DataError(f"{path} is damaged: {problem}") from None

    @staticmethod
    def begun(
        file: RunFile,
        data: Federated,
        parts: Sequence[str],
        folder: Path,
        epochs: float,
        loss: Loss,
    ) -> Manifest:
        weights = in_words(getattr(loss, "class_weights", None), data)
        values = {
            "fedloom": version_of("fedloom"),
            "algorithm": parts[0],
            "title": file.output.title or f"{parts[0]} on {data.name}",
            "created": _now(),
            "finished": None,
            "interrupted": False,
            "failed": None,
            "halted": {},
            "parts": list(parts),
            "epochs": epochs,
            "config": file.to_dict(),
            "loss": described(loss),
            "data": data.summary(),
            "notes": [*data.notes, *weights],
            "sources": dict(data.sources),
            "partition": "partition.json" if data.cut is not None else None,
            "seed": file.engine.seed,
            "versions": {"python": platform.python_version()}
            | {name: number for name in PACKAGES if (number := version_of(name))},
            "commit": commit(),
            "machine": machine(file.engine.device),
        }
        return Manifest(values)._written(folder)

    def finished(
        self,
        folder: Path,
        halted: Mapping[str, str],
        best: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Manifest:
        """All parts are at their end; `halted`: why some ended early; `best`: of parts with early
        stopping, the evaluation that their model is of."""
        ended = {"finished": _now(), "interrupted": False, "failed": None}
        return self._with(folder, **ended, halted=dict(halted), best=dict(best or {}))

    @property
    def parts(self) -> list[str]:
        return list(self.values["parts"])

    def goes_on(
        self, folder: Path, file: RunFile, reached: Mapping[str, int], rounds: int, epochs: float
    ) -> Manifest:
        """It was finished, and goes on; `reached`: the rounds of its parts."""
        more = {"created": _now(), "from": dict(reached), "rounds": rounds}
        again: dict[str, Any] = {"finished": None, "halted": {}, "best": {}, "epochs": epochs}
        before = self.values.get("more", [])
        return self._with(folder, **again, config=file.to_dict(), more=[*before, more])

    def more_from(self, part: str) -> int | None:
        """The round from which a part went on after it was finished, the last time."""
        more = self.values.get("more", [])
        return more[-1]["from"].get(part) if more else None

    def stopped(self, folder: Path) -> Manifest:
        return self._with(folder, interrupted=True, failed=None)

    def failed(self, folder: Path, why: str) -> Manifest:
        """Training ended with an error."""
        return self._with(folder, failed=why)

    def _with(self, folder: Path, **values: Any) -> Manifest:
        return Manifest({**self.values, **values})._written(folder)

    def _written(self, folder: Path) -> Manifest:
        write_json(folder / NAME, self.values, SHARED)
        return self


def machine(device: str) -> dict[str, Any]:
    facts = {"system": platform.platform(), "cores": os.cpu_count(), "device": device}
    if device.startswith("cuda"):
        import torch

        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the code that runs, where it is a checkout."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
