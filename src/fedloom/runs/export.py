"""A trained model out of its run: predicts, is judged, is saved and loaded.

On disk it is a folder: `model.safetensors` (weights) and `model.json` (which registered models they
belong to, how silos prepare their tables, classes), each with a digest over the whole file. Nothing
in it is code; modules of your own are named when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import seal
from ..core.checked import checked
from ..core.errors import DataError, ModelError, SettingError, nearest
from ..core.settings import shown
from ..data.dataset import Goal
from ..data.placement import Placement, as_rows
from ..data.tables.id_overlap import LEAST
from ..data.tables.prepare import Preparation
from ..data.tables.read import IdKind, TablePaths, read_rows
from ..models.clipping import GUARDED, guarded
from ..models.library import IN_A_ROW, Maker, in_a_row, registered
from ..models.losses import Loss, LossLike, loss_of
from ..models.losses.choose import described
from ..models.threshold import HALF
from ..records.metrics import Metrics, metrics
from ..records.own_metrics import MetricLike, chosen_metrics

if TYPE_CHECKING:
    from .run import Run

How = Literal["joint", "combined", "alone"]
Sources = Mapping[str, Any]

FORM = 3
CURE = "save it again (run.save), or restore it from a backup"


@dataclass(frozen=True, eq=False)
class Model:
    """`how` silos predict: "joint" (embeddings meet, then the head), "combined" (lone silos' scores
    put together), "alone" (a silo by itself; say which with `at`). `threshold`: the probability
    above which a row is said to be of class 1; by silo where they predict alone. `facts` are for
    people."""

    how: How
    blocks: Mapping[str, nn.Module]
    heads: Mapping[str, nn.Module | None]
    combine: str
    widths: Mapping[str, int]
    loss: Loss
    makers: Mapping[str, Maker | None]
    head_maker: Maker | None = None
    classes: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    preparation: Preparation | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    threshold: float | Mapping[str, float] = HALF

    @property
    def silos(self) -> tuple[str, ...]:
        return tuple(self.blocks)

    @property
    def goal(self) -> Goal | None:
        return self.loss.goal

    @checked("x")
    def predict(self, x: Mapping[str, Tensor] | Placement, at: str | None = None) -> Tensor:
        """Scores of rows: {silo: features}, the same rows in every silo, or a placement."""
        x = x.x if isinstance(x, Placement) else x
        if not isinstance(x, Mapping):
            form = "{silo: features} or a Placement is expected"
            raise DataError(f"Model.predict: {form}, not {shown(x)}")
        x = {silo: as_rows(f"features of silo {silo}", rows) for silo, rows in x.items()}
        if set(x) != set(self.silos):
            raise DataError(f"a model of silos {list(self.silos)}, rows of {list(x)}")
        if len({len(rows) for rows in x.values()}) != 1:
            raise DataError("silos differ in their number of rows")
        if self.how == "alone" and at not in self.blocks:
            hint = nearest(at or "", self.silos)
            raise SettingError(f"silos that trained alone predict alone: at={at!r}{hint}")
        with torch.no_grad():
            phis = {j: self._placed(j, self._embedded(j, x[j])) for j in self.silos}
            if self.how == "joint":
                return self._scores(self.silos[0], torch.stack(list(phis.values())).sum(0))
            if at is not None and self.how == "alone":
                return self._scores(at, phis[at])
            return self.loss.combine([self._scores(j, phi) for j, phi in phis.items()])

    @checked("files")
    def predict_tables(
        self,
        files: TablePaths,
        id: str | None = None,
        *,
        at: str | None = None,
        ids: IdKind = "plain",
        salt: str | None = None,
        min_match: float = LEAST,
        notes: list[str] | None = None,
    ) -> tuple[Any, Tensor]:
        """New tables, {silo: {client: path}} or {silo: path}: the ids that all silos have, and
        their scores. Without `id` its column is called as in training. What is dropped (rows that
        are not in every silo) is told to `notes`; a share of the smallest silo's rows below
        `min_match` is refused."""
        if self.preparation is None:
            raise DataError("this model was not trained on tables: it takes {silo: features}")
        rows = read_rows(
            files, self.preparation, id=id, ids=ids, salt=salt, min_match=min_match, notes=notes
        )
        return rows.ids, self.predict(rows, at)

    @checked()
    def probabilities(self, scores: Tensor) -> Tensor:
        """Scores as probabilities: of class 1, or of each class."""
        _need_rows(scores)
        if self.goal == "binary":
            return scores.sigmoid()[:, 0]
        if self.goal == "classes":
            return scores.softmax(1)
        raise ModelError("only classes have probabilities")

    @checked()
    def decide(self, scores: Tensor, at: str | None = None) -> Tensor:
        """What scores say of rows: the number of a class (of two, class 1 above the model's
        `threshold`), or a number in the labels' own unit."""
        _need_rows(scores)
        if self.goal == "binary":
            return (self.probabilities(scores.double()) > self.threshold_of(at)).long()
        return scores.argmax(1) if self.goal == "classes" else self.loss.values(scores)

    def threshold_of(self, silo: str | None = None) -> float:
        """The probability above which a row is said to be of class 1; `silo`: where silos predict
        alone."""
        if not isinstance(self.threshold, Mapping):
            return self.threshold
        if silo is None or silo not in self.threshold:
            hint = nearest(silo or "", self.threshold)
            raise SettingError(f"silos that trained alone decide alone: at={silo!r}{hint}")
        return self.threshold[silo]

    @checked()
    def evaluate(
        self, placement: Placement, at: str | None = None, *, more: Sequence[MetricLike] = ()
    ) -> Metrics:
        """Test metrics of a placement with labels; `more`: besides the usual, as in `Run`."""
        if self.goal is None:
            raise ModelError("a loss of your own has no metrics: use predict")
        others, scores = chosen_metrics(more, self.goal), self.predict(placement, at)
        threshold = self.threshold_of(at) if self.goal == "binary" else HALF
        values = self.loss.values(scores)
        return metrics(self.goal, values, placement.labels(), others, threshold)

    def _embedded(self, silo: str, x: Tensor) -> Tensor:
        block = self.blocks[silo]
        like = next(iter(block.parameters()), None)
        if like is not None:
            x = x.to(like.device, like.dtype) if x.is_floating_point() else x.to(like.device)
        try:
            return block(x)
        except (RuntimeError, IndexError) as problem:
            why = f"rows of shape {list(x.shape[1:])} do not fit its model ({problem})"
            raise DataError(f"silo {silo}: {why}") from None

    def _placed(self, silo: str, phi: Tensor) -> Tensor:
        if self.combine == "sum":
            return phi
        silos, widths = list(self.widths), list(self.widths.values())
        before = sum(widths[: silos.index(silo)])
        return F.pad(phi, (before, sum(widths) - before - phi.shape[-1]))

    def _scores(self, silo: str, joint: Tensor) -> Tensor:
        head = self.heads[silo]
        return joint if head is None else head(joint)

    # On disk

    @checked()
    def save(self, folder: str | PathLike[str]) -> Path:
        """Into a folder; a model that is there already is replaced."""
        folder = Path(folder)
        tensors: dict[str, Tensor] = {}
        for kind, modules in (("block", self.blocks), ("head", self.heads)):
            for silo, module in modules.items():
                state = {} if module is None else module.state_dict()
                for name, value in state.items():
                    tensors[f"{kind}/{silo}/{name}"] = value
        seal.write_tensors(folder / "model.safetensors", tensors, {})
        seal.write_json(folder / "model.json", self._described())
        return folder

    def _described(self) -> dict[str, Any]:
        return {
            "form": FORM,
            "how": self.how,
            "combine": self.combine,
            "loss": described(self.loss),
            "goal": self.goal,
            "threshold": self.threshold,
            "widths": dict(self.widths),
            "blocks": {j: None if m is None else m.describe() for j, m in self.makers.items()},
            "head": None if self.head_maker is None else self.head_maker.describe(),
            "has_head": any(head is not None for head in self.heads.values()),
            "classes": list(self.classes),
            "columns": {silo: list(names) for silo, names in self.columns.items()},
            "preparation": None if self.preparation is None else self.preparation.to_json(),
            "facts": dict(self.facts),
        }


@checked()
def load_model(
    folder: str | PathLike[str],
    *,
    blocks: Sources | None = None,
    head: Any = None,
    loss: LossLike | None = None,
) -> Model:
    """A saved model. Modules of your own (functions that make them) are given again: `blocks`
    {silo: function}, `head`, and a `loss` of your own."""
    folder = Path(folder)
    if not (folder / "model.json").is_file():
        if (folder / "model" / "model.json").is_file():
            raise DataError(f"{folder} is a run's folder: its model is in {folder / 'model'}")
        raise DataError(f"{folder} holds no model (model.json)")
    try:
        saved = seal.read_json(folder / "model.json", CURE)
        tensors, _ = seal.read_tensors(folder / "model.safetensors", CURE)
        if saved["form"] != FORM:
            raise DataError(f"{folder}: a model of another version of fedloom")
        makers = {silo: _maker(given, silo, blocks) for silo, given in saved["blocks"].items()}
        head_maker = _maker(saved["head"], "head", {"head": head}) if saved["has_head"] else None
        made = {silo: maker() for silo, maker in makers.items()}
        heads = {silo: None if head_maker is None else head_maker() for silo in made}
        for kind, modules in (("block", made), ("head", heads)):
            for silo, module in modules.items():
                _load(module, tensors, f"{kind}/{silo}/")
        prepared = saved["preparation"]
        return Model(
            saved["how"],
            made,
            heads,
            saved["combine"],
            saved["widths"],
            _loss(saved, loss),
            {silo: maker if isinstance(maker, Maker) else None for silo, maker in makers.items()},
            head_maker if isinstance(head_maker, Maker) else None,
            tuple(saved["classes"]),
            {silo: tuple(names) for silo, names in saved["columns"].items()},
            None if prepared is None else Preparation.from_json(prepared),
            saved["facts"],
            saved["threshold"],
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as problem:
        if isinstance(problem, DataError | ModelError | SettingError):
            raise
        raise DataError(f"{folder} holds no model, or a damaged one ({problem})") from None


def _loss(saved: Mapping[str, Any], own: LossLike | None) -> Loss:
    if own is None and saved["loss"] is None:
        raise ModelError("a loss of your own is not saved as code; give it as `loss`")
    return loss_of(own if own is not None else saved["loss"], saved["goal"])


def _maker(saved: Mapping[str, Any] | None, name: str, own: Sources | None) -> Any:
    if saved is not None and saved["name"] == GUARDED:
        return guarded(_maker(saved["block"], name, own), saved["clip"])
    if own is not None and own.get(name) is not None:
        return own[name]
    if saved is None:
        raise ModelError(
            f"{name}: a module of your own is not saved as code; give the function that makes it"
        )
    if saved["name"] == IN_A_ROW:
        return in_a_row(*(_maker(saved[part], name, None) for part in ("middle", "last")))
    settings = {key: _tuple(value) for key, value in saved.items() if key != "name"}
    return registered(saved["name"], settings)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _load(module: nn.Module | None, tensors: Mapping[str, Tensor], prefix: str) -> None:
    if module is not None:
        own = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        first = next((v for v in own.values() if v.is_floating_point()), None)
        if first is not None:
            module.to(first.dtype)
        module.load_state_dict(own)
        module.eval()


def _need_rows(scores: Tensor) -> None:
    if scores.ndim != 2:
        raise DataError(f"scores: [rows, outputs] are expected, not of {scores.ndim} dimensions")


def model_of(run: Run) -> Model:
    """Out of the run: it predicts, is saved and loaded."""
    algorithm, data, head = run.algorithm, run.data, run.task.head
    thetas, parts = algorithm.blocks(run.fed, run.trained_state), run.fed.parts.value
    how: How = "joint" if algorithm.joint else "combined"
    heads = {
        j: None if part.head is None else part.head.with_params(thetas[j].head)
        for j, part in parts.items()
    }
    return Model(
        how="alone" if algorithm.predicts_alone else how,
        blocks={j: part.block.with_params(thetas[j].block) for j, part in parts.items()},
        heads=heads,
        combine=run.task.combine,
        widths=run.shapes.width,
        loss=run.task.loss,
        makers={j: _maker_of(block.source) for j, block in run.task.blocks.items()},
        head_maker=None if head is None else _maker_of(head.source),
        classes=() if data is None else data.classes,
        columns={} if data is None else data.columns,
        preparation=None if data is None else data.preparation,
        facts={"algorithm": type(algorithm).__name__, "rounds": run.model_round},
        threshold=run.model_threshold if run.task.loss.goal == "binary" else HALF,
    )


def _maker_of(source: Any) -> Maker | None:
    return source if isinstance(source, Maker) else None
