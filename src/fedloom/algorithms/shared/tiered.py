"""What algorithms share whose hubs average their clients' blocks (the two tiers of TDCD).

Line numbers are those of Algorithm 1 in Das, Castiglia, Wang, Patterson (see tdcd.py);
`start` is line 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from torch import Tensor

from ...core.placed import AtClients, AtHubs, Placed, Rows
from ...core.rng import Streams
from ...fabric.kinds import Kind
from ...fabric.local_work import name_of
from ...fabric.verbs import Fabric
from ...models.task import Part, Theta
from ..contract import NOWHERE, State, Step
from . import local
from .hub_steps import HubStep, HubStepName, hub_step_of, stepped
from .minibatch import Draw, MinibatchSGD
from .optimizers import Memory, Optimizer, Trained, memory_of, theta_of, trained_part

MODEL = Kind("model", "the hub's block of the model, to its own clients")
EMBEDDING = Kind(
    "embedding",
    "a client's embeddings of its rows in the minibatch",
    "embedding",
    reveals="features: the hub has the block, and computes the rows themselves where an embedding "
    "has as many numbers as a row",
)
HUB_EMBEDDING = Kind(
    "hub-embedding",
    "a silo's embeddings of the minibatch",
    "embedding",
    reveals="features: who knows some hundred rows learns to guess the others, who knows the block "
    "computes them as its own hub does",
)
UPDATE = Kind(
    "update",
    "a client's block after its local steps",
    reveals="the gradient of its rows: of a client with one row in the minibatch, that row",
)

Weighting = Literal["uniform", "participants", "rows"]


@dataclass(frozen=True)
class TieredSGD(MinibatchSGD):
    """What algorithms share whose hubs average their clients' blocks."""

    weighting: Annotated[
        Weighting,
        "of clients in the mean: all alike, all that had rows in the minibatch, or by their rows",
    ] = "uniform"

    hub: Annotated[
        HubStepName | HubStep,
        "what a hub does with its clients' mean: `mean` takes it; or a table with settings",
    ] = "mean"

    @cached_property
    def hub_step(self) -> HubStep | None:
        """The hubs' step; None: the mean as it is."""
        return hub_step_of(self.hub)

    def start(self, fed: Fabric) -> Any:
        theta = fed.at_hubs(self.first, fed.part, fed.known(fed.streams))
        return State(theta, self.hubs_memory(fed, theta), self.clients_memory(fed, self.first))

    def first(self, part: Part, streams: Streams) -> Theta:
        """A hub's block at round 0."""
        return local.initial(part, streams)

    def to_clients(self, fed: Fabric, theta: AtHubs[Theta], draw: Draw) -> AtClients[Theta]:
        """Lines 11-12."""
        holding = draw.rows if self.weighting == "participants" else None
        return fed.to_clients(MODEL, theta, holding)

    def average(
        self, fed: Fabric, theta_k: AtClients[Theta], state: State, rows_k: AtClients[Tensor]
    ) -> AtHubs[Theta]:
        """Line 32. `rows_k`: how many of each client's rows counted."""
        weight_k = None
        if self.weighting != "uniform":
            weight_k = fed.at_clients(self.weigh, fed.part, rows_k)
        return fed.mean(UPDATE, theta_k, otherwise=state.theta, weight=weight_k)

    # Optimisers, at clients and hubs

    def train(
        self,
        fed: Fabric,
        work: Callable[..., Any],
        kept: Placed,
        *given: Placed,
        steps: int | None = None,
    ) -> AtClients[Any]:
        """Local steps at the clients (Q of them, if not said): what `settle` takes."""
        steps = self.local_steps if steps is None else steps
        if self.steps_by is None:
            return fed.at_clients(work, fed.part, *given, steps=steps)
        memory = kept if self.keeps else fed.known(None)
        by = ByOptimizer(work, self.steps_by)
        trained_k = fed.at_clients(by, fed.part, memory, *given, steps=steps)
        return fed.hold(trained_k) if self.keeps else trained_k

    def settle(
        self, fed: Fabric, trained_k: AtClients[Any], state: State, rows_k: AtClients[Tensor]
    ) -> State:
        """Line 32, the hubs' step, and what clients keep of what their optimisers remember."""
        theta_k = fed.at_clients(theta_of, trained_k) if self.keeps else trained_k
        mean = self.average(fed, theta_k, state, rows_k)
        theta, hub = self.towards(fed, state.theta, mean, state.hub)
        return State(theta, hub, self.keep(fed, trained_k, state.kept))

    def keep(self, fed: Fabric, trained_k: AtClients[Any], kept: Any) -> Any:
        """What clients remember after this round."""
        return fed.keep(fed.at_clients(memory_of, trained_k), kept) if self.keeps else kept

    def towards(
        self, fed: Fabric, theta: AtHubs[Theta], mean: AtHubs[Theta], memory: AtHubs[Memory]
    ) -> tuple[AtHubs[Theta], AtHubs[Memory]]:
        """The hubs' step from where they are towards their clients' mean."""
        if self.hub_step is None:
            return mean, memory
        at_once = fed.known(self.silos_at_once(fed))
        moved = fed.at_hubs(self.hub_moved, theta, mean, memory, at_once)
        return fed.at_hubs(theta_of, moved), fed.at_hubs(memory_of, moved)

    def silos_at_once(self, fed: Fabric) -> int:
        """How many silos correct the same error at the same time."""
        return len(fed.silos)

    def hub_moved(self, theta: Theta, mean: Theta, memory: Memory, silos: int) -> Trained:
        assert self.hub_step is not None
        return stepped(self.hub_step, theta, mean, memory, silos)

    def hubs_memory(self, fed: Fabric, theta: AtHubs[Theta]) -> AtHubs[Memory]:
        """What the hubs' steps remember before the first."""
        return NOWHERE if self.hub_step is None else fed.at_hubs(self.hub_remembers, theta)

    def hub_remembers(self, theta: Theta) -> Memory:
        assert self.hub_step is not None
        return self.hub_step.optimizer.init(trained_part(theta))

    def clients_memory(self, fed: Fabric, first: Callable[[Part, Streams], Theta]) -> Any:
        """What clients keep of their optimisers before the first step: of a model like `first`."""
        if not self.keeps:
            return NOWHERE
        streams = fed.known(fed.streams)
        return fed.at_clients(Remembering(first, self.steps_by), fed.part, streams)

    def notes(self, fed: Fabric, state: Any) -> dict[str, Any]:
        """How far hubs go, where that was not said in numbers."""
        if self.hub_step is None or not self.hub_step.is_auto:
            return {}
        return {"relaxation": self.hub_step.rate(self.silos_at_once(fed))}

    def weigh(self, part: Part, rows: Tensor) -> Tensor:
        return (rows if self.weighting == "rows" else rows > 0).to(part.shapes.dtype)


@dataclass(frozen=True, repr=False)
class ByOptimizer:
    """Local work whose steps are an optimiser's, with its memory (None: a fresh one) among the
    arguments. It has none of the work's marks: its result is not linear in the rows."""

    work: Callable[..., Any]
    optimizer: Optimizer

    def __repr__(self) -> str:
        return f"{name_of(self.work)} by {type(self.optimizer).__name__}"

    def __call__(self, part: Part, memory: Memory | None, *given: Any) -> Any:
        return self.work(part, *given, by=local.Descent(self.optimizer, memory))


@dataclass(frozen=True)
class Remembering:
    """What an optimiser remembers at the start, of a model like `first`."""

    first: Callable[[Part, Streams], Theta]
    optimizer: Optimizer | None

    def __call__(self, part: Part, streams: Streams) -> Memory:
        assert self.optimizer is not None
        return self.optimizer.init(trained_part(self.first(part, streams)))


def counted(rest: Rows) -> Tensor:
    """How many of the client's rows counted in this round."""
    return rest.mask.sum()


def predict_jointly(fed: Fabric, state: State, step: Step) -> AtHubs[Rows]:
    """Clients embed, hubs exchange and add up: the joint prediction at every hub."""
    theta_k = fed.to_clients(MODEL, state.theta)
    phi_k = fed.at_clients(local.embed, fed.part, theta_k, step.batch_k)
    phis = fed.exchange(HUB_EMBEDDING, fed.gather(EMBEDDING, phi_k, step.rows))
    return fed.at_hubs(local.joint_scores, fed.part, state.theta, phis)
