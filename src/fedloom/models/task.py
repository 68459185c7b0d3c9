"""The model of a run: a block per silo, how embeddings are combined, and the loss (Eqns. 1-3).

    score(x) = head( sum_j place_j( h_j(theta_j; x_j) ) )

With combine = "sum", embeddings have one width and place_j is the identity; without a head, the sum
is the score (the journal's form). With combine = "concat", place_j pads silo j's embedding to its
own columns, so that a concatenation is a sum, too (ICASSP MNIST: 256 + 256 -> linear 512 -> 10). A
head may begin with a `middle`, which U-shaped SplitNN keeps at another party than the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import tree
from ..core.checked import checked
from ..core.errors import DataError, FedLoomError, ModelError, SettingError, nearest
from ..core.payload import RowWord, travels
from ..core.placed import Noise
from ..core.rng import Stream, Streams
from ..core.settings import at_least
from ..data.dataset import LOSSES
from ..data.federated import Federated, check_data
from ..data.placement import Placement
from .block import Block, Params, Source
from .check import check_block
from .clipping import guarded
from .dropout import Dropout
from .library import Maker, both, in_a_row
from .losses import Loss, LossLike, loss_of
from .sizing import joint_width, sized_blocks, sized_top
from .training_layers import BatchNorm, training_layers

Combine = Literal["sum", "concat"]
Spec = tuple[tuple[int, ...], torch.dtype]


@travels
class Theta(NamedTuple):
    """The parameters of silo j: its block, and its replica of the head (empty if there is none)."""

    block: Params
    head: Params


@dataclass(frozen=True)
class Shapes:
    """Shapes that every party knows before the first round."""

    features: Mapping[str, Spec]
    width: Mapping[str, int]
    joint: int
    scores: int
    label: Spec
    dtype: torch.dtype
    middle: int = 0

    def row(self, word: RowWord, silo: str) -> Spec:
        """Shape and dtype of one row of a message (RowWord in core/payload.py)."""
        match word:
            case "embedding":
                return (self.width[silo],), self.dtype
            case "joint":
                return (self.joint,), self.dtype
            case "views":
                return (len(self.width), self.joint), self.dtype
            case "middle":
                return (self.middle,), self.dtype
            case "scores":
                return (self.scores,), self.dtype
            case "features":
                return self.features[silo]
            case "label":
                return self.label

    def made_up(self, silo: str, count: int) -> tuple[Tensor, Tensor]:
        """Features and labels of the right shape without meaning: for padding and warm-up."""
        (x_shape, x_type), (y_shape, y_type) = self.features[silo], self.label
        x = torch.full((count, *x_shape), 1 if x_type.is_floating_point else 0, dtype=x_type)
        return x, torch.zeros((count, *y_shape), dtype=y_type)


@dataclass(frozen=True, eq=False)
class Part:
    """Silo j's part of the task, for its hub and clients."""

    silo: str
    block: Block
    head: Block | None
    loss: Loss
    combine: Combine
    shapes: Shapes
    device: torch.device
    middle: Block | None = None  # the first part of a head that has two
    last: Block | None = None  # and its second part

    @property
    def loop_only(self) -> bool:
        """Whether clients must be run one by one."""
        return self.block.loop_only or (self.head is not None and self.head.loop_only)

    @property
    def mixes_rows(self) -> bool:
        """Whether a row's embedding depends on the client's other rows in training (BatchNorm)."""
        return bool(self.block.statistics)

    @property
    def kind(self) -> Hashable:
        """Equal for parts that differ only in the name of their silo."""
        module = self.block.module
        constant = any(not p.requires_grad for p in module.parameters())
        buffers = any(name not in self.block.statistics for name, _ in module.named_buffers())
        if self.combine == "concat" or constant or buffers:
            return self.silo  # columns or constants may differ
        spec = (self.shapes.features[self.silo], self.shapes.width[self.silo])
        return (self.block.origin, str(module), spec)

    def initial(self, streams: Streams) -> Theta:
        """theta_j at round 0, drawn by hub j; all replicas of the head start equal."""
        return self._initial(streams, streams.initial(self.silo))

    def initial_for_all(self, streams: Streams) -> Theta:
        """The same from common streams only, for a party that is not hub j."""
        return self._initial(streams, streams.common("initial", self.silo))

    def _initial(self, streams: Streams, own: Stream) -> Theta:
        block = self.block.initial(own.seed())
        head = {} if self.head is None else self.head.initial(streams.common("head").seed())
        return Theta(self._cast(block), self._cast(head))

    def _cast(self, params: Params) -> Params:
        return tree.map_tensors(lambda a: a.to(dtype=self.shapes.dtype, device=self.device), params)

    def embed(self, theta: Theta, x: Tensor, axes: int = 1, noise: Noise | None = None) -> Tensor:
        """Phi_j of every row, as it predicts. `axes`: how many leading axes of x are rows. `noise`:
        for a guarded block."""
        rows, lead = x.flatten(0, axes - 1), x.shape[:axes]
        if noise is None:
            return self.block(theta.block, rows).unflatten(0, lead)
        flat = tree.map_tensors(lambda a: a.flatten(0, axes - 1), noise)
        return self.block(theta.block, rows, flat).unflatten(0, lead)

    def embed_in_training(
        self,
        theta: Theta,
        x: Tensor,
        counts: Tensor,
        noise: Noise | None = None,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Params]:
        """Phi_j of every row, as it trains, and the block's running statistics after it. `counts`:
        the rows that count, [b] or [Q, b]; `keys`: what masks of dropout are named by."""
        if not self.block.trains_otherwise:
            return self.embed(theta, x, counts.ndim, noise), {}
        if counts.ndim == 1:
            more = () if noise is None else (noise,)
            return self.block.in_training(theta.block, x, counts, *more, keys=keys)
        # of several minibatches, each has its own statistics, and none is trained on
        each = tree.unbound((x, counts, noise, keys), len(counts))
        return torch.stack([self.embed_in_training(theta, *step)[0] for step in each]), {}

    def apart(self, theta: Theta) -> tuple[Theta, Params]:
        """What is trained of theta, and its running statistics, which only move."""
        names = self.block.statistics
        if not names or not theta.block:
            return theta, {}
        weights = {name: a for name, a in theta.block.items() if name not in names}
        return theta._replace(block=weights), {name: theta.block[name] for name in names}

    def joined(self, weights: Theta, statistics: Params) -> Theta:
        """The inverse of `apart`."""
        return weights._replace(block=weights.block | statistics) if statistics else weights

    def place(self, phi: Tensor, silo: str | None = None) -> Tensor:
        """A silo's embedding, padded to the joint width."""
        if self.combine == "sum":
            return phi
        before = self._before(silo or self.silo)
        return F.pad(phi, (before, self.shapes.joint - before - phi.shape[-1]))

    def share(self, joint: Tensor, silo: str) -> Tensor:
        """A silo's own columns of the joint embedding."""
        if self.combine == "sum":
            return joint
        return joint.narrow(-1, self._before(silo), self.shapes.width[silo])

    def _before(self, silo: str) -> int:
        widths = self.shapes.width
        return sum(list(widths.values())[: list(widths).index(silo)])

    def scores(self, theta: Theta, joint: Tensor) -> Tensor:
        """Scores of a joint embedding: the input of the loss."""
        return joint if self.head is None else self.head(theta.head, joint)


class SiloAsked(FedLoomError):
    """Local work that runs for several silos at once has read the silo's name."""


class NamelessPart(Part):
    """A part without its silo's name, for local work that runs for several silos at once."""

    def __init__(self, part: Part):
        self.__dict__.update({k: v for k, v in vars(part).items() if k != "silo"})

    def __getattr__(self, name: str) -> Any:
        if name == "silo":
            raise SiloAsked("the silo's name was read")
        raise AttributeError(name)


class Task:
    """Blocks by silo, the loss, and perhaps a trainable head that all silos share."""

    @checked()
    def __init__(
        self,
        blocks: Mapping[str, Source],
        loss: LossLike,
        *,
        head: Source | None = None,
        middle: Source | None = None,
        combine: Combine = "sum",
    ):
        self.blocks = {silo: Block(source) for silo, source in blocks.items()}
        self.loss: Loss = loss_of(loss)
        self._losses: dict[tuple[torch.dtype, torch.device], Loss] = {}
        if middle is not None and head is None:
            raise ModelError("a middle needs a head after it, which turns its output into scores")
        self.middle = None if middle is None else Block(middle)
        self.last = None if middle is None or head is None else Block(head)
        if middle is not None and head is not None:
            if isinstance(middle, Maker) and isinstance(head, Maker):
                head = in_a_row(middle, head)
            else:
                head = partial(both, middle, head)
        self.head = None if head is None else Block(head)
        self.combine: Combine = combine

    @staticmethod
    @checked("data")
    def of(
        data: Federated,
        model: str = "linear",
        *,
        loss: LossLike | None = None,
        embedding: Annotated[int | None, at_least(1)] = None,
        head: str | Mapping[str, Any] | None = None,
        middle: str | Mapping[str, Any] | None = None,
        combine: Combine = "sum",
        silos: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> Task:
        """A registered model for every silo, sized by the data: Task.of(data, "mlp", hidden=[32]).

        `silos`: another model or other settings for some silos. With `embedding`, every block has
        an output of that width, and a `head` ("linear", or {"name": "mlp", "hidden": [64]}) turns
        the joint embedding into scores. A `middle` before the head has outputs of the same width.
        `loss`: a name, {"name": "huber", "delta": 2.0}, or a torch loss or function of scores and
        labels that gives a number for each row; None: by the goal of the data.
        """
        check_data("Task.of", data, Federated)
        other = silos or {}
        for silo in other:
            if silo not in data.train.topology.silos:
                known = data.train.topology.silos
                raise SettingError(f"model: there is no silo {silo!r}{nearest(silo, known)}")
        if (embedding is None) != (head is None):
            raise SettingError("model: embedding and head go together: give both or none")
        by_silo: dict[str, Any] = {}
        for silo in data.train.topology.silos:
            own = other.get(silo, {})
            same = own.get("name", model) == model
            by_silo[silo] = {"name": model, **(settings if same else {}), **own}
        shapes = {silo: tuple(x.shape[1:]) for silo, x in data.train.x.items()}
        blocks = sized_blocks(shapes, embedding or data.outputs, by_silo)
        top: Source | None = None
        between: Source | None = None
        if embedding is not None and head is not None:
            width = joint_width(combine, embedding, len(blocks))
            if middle is not None:
                between = sized_top(middle, width, embedding, "the middle")
                width = embedding
            top = sized_top(head, width, data.outputs, "the head")
        elif middle is not None:
            raise SettingError("model: a middle needs an embedding and a head")
        chosen = loss_of(loss or LOSSES[data.goal], data.goal).fitted(data)
        return Task(blocks, chosen, head=top, middle=between, combine=combine)

    def training_layers(self) -> Iterator[tuple[str, BatchNorm | Dropout]]:
        """The layers of blocks that train otherwise than they predict: silo, and layer."""
        for silo, block in self.blocks.items():
            yield from ((silo, layer) for layer in training_layers(block.module))

    def guarded(self, clip: float | None) -> Task:
        """The same task with blocks that clip their rows, and can add noise."""
        task = copy.copy(self)
        task.blocks = {j: Block(guarded(block.source, clip)) for j, block in self.blocks.items()}
        return task

    def only(self, silos: Sequence[str]) -> Task:
        """The task with the blocks of these silos only; not possible with a head."""
        if self.head is not None and len(silos) < len(self.blocks):
            raise ModelError("the head takes all silos' embeddings: none can be left out")
        blocks = {silo: self.blocks[silo].source for silo in silos}
        return Task(blocks, self.loss, head=None, combine=self.combine)

    def shapes(self, placement: Placement, dtype: torch.dtype) -> Shapes:
        """Check the blocks on a few rows, before any training; returns the shapes."""
        silos = placement.topology.silos
        if set(self.blocks) != set(silos):
            raise ModelError(f"blocks for silos {sorted(self.blocks)}, data of {sorted(silos)}")
        width: dict[str, int] = {}
        features: dict[str, Spec] = {}
        checked: dict[Any, int] = {}  # silos with equal blocks are checked only once
        for silo in silos:
            x = placement.x[silo][:3]
            alike = (self.blocks[silo].origin, x.shape, x.dtype)
            if alike not in checked:
                where = f"silo {silo}'s block"
                checked[alike] = check_block(self.blocks[silo], x, dtype, where)
            width[silo] = checked[alike]
            features[silo] = (tuple(x.shape[1:]), dtype if x.is_floating_point() else x.dtype)
        if self.combine == "sum" and len(set(width.values())) > 1:
            widths = ", ".join(f"{silo} {w}" for silo, w in width.items())
            raise ModelError(
                f"embedding widths do not match for a sum: {widths}. Give the blocks equal "
                'outputs, or use combine="concat" with a head'
            )
        joint = sum(width.values()) if self.combine == "concat" else width[silos[0]]
        scores, middle = joint, 0
        if self.head is not None:
            row = torch.randn(3, joint, generator=torch.Generator().manual_seed(0))
            if self.middle is not None:
                middle = check_block(self.middle, row, dtype, "the middle", is_head=True)
            scores = check_block(self.head, row, dtype, "the head", is_head=True)
        elif self.combine == "concat":
            raise ModelError('combine="concat" needs a head that turns the embeddings into scores')
        label = self._labels(placement, scores, dtype)
        return Shapes(features, width, joint, scores, label, dtype, middle)

    def _labels(self, placement: Placement, scores: int, dtype: torch.dtype) -> Spec:
        try:
            labels = self.loss.labels(placement.labels(), dtype)
        except DataError as problem:
            raise DataError(f"labels: {problem}") from None
        self.loss.to(dtype, labels.device).check(scores, labels)
        return (tuple(labels.shape[1:]), labels.dtype)

    def part(self, silo: str, shapes: Shapes, device: torch.device) -> Part:
        head = None if self.head is None else self.head.to(shapes.dtype, device)
        block = self.blocks[silo].to(shapes.dtype, device)
        middle, last = (
            None if part_of_head is None else part_of_head.to(shapes.dtype, device)
            for part_of_head in (self.middle, self.last)
        )
        loss = self._placed_loss(shapes.dtype, device)
        return Part(silo, block, head, loss, self.combine, shapes, device, middle, last)

    def _placed_loss(self, dtype: torch.dtype, device: torch.device) -> Loss:
        """The loss for scores of this kind: one for all parts."""
        if (dtype, device) not in self._losses:
            self._losses[dtype, device] = self.loss.to(dtype, device)
        return self._losses[dtype, device]
