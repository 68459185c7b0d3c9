"""The contract of an algorithm: `check`, `start`, `draw`, `round`, `predict`, and defaults.

An algorithm is a frozen dataclass of settings with one `round()` over the fabric. It imports
neither engines nor transports. Registering it is all it takes to be simulated and run by parties.
What a round costs, and what the battery runs, are registered in verification/.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from ..core.checked import Checked
from ..core.errors import ModelError, SettingError
from ..core.placed import AtClients, AtHubs, Batch, RowMap, Rows
from ..core.rng import Streams
from ..data.placement import Placement
from ..fabric.verbs import Fabric
from ..models.task import Part, Task, Theta

NOWHERE: AtHubs[Any] = AtHubs({}, ())
"""A value that no party has: state that a run with these settings does not need."""


class State(NamedTuple):
    """What lives from round to round: each hub's block of the model; what its step remembers, and
    what optimisers remember that are kept where they step, where the settings ask for either."""

    theta: AtHubs[Theta]
    hub: AtHubs[Any] = NOWHERE
    kept: AtClients[Any] | AtHubs[Any] = NOWHERE


class Step(NamedTuple):
    """One minibatch: each client's rows of it, and where they sit."""

    batch_k: AtClients[Batch]
    rows: RowMap


class Algorithm(Checked, ABC):
    """One round, written from above. Subclasses are frozen dataclasses of settings, checked by
    their types and limits when one is made. The first five methods are the algorithm; all others
    have defaults."""

    State: ClassVar[type[Any]] = State
    joint: ClassVar[bool] = True  # the silos train one model: a row missing anywhere is left out
    one_silo: ClassVar[bool] = False  # it is for the clients of a single silo
    needs_server: ClassVar[bool] = False  # a server takes part, and holds the task's middle
    personal: ClassVar[bool] = False  # clients have models of their own: see `predict_as`
    asynchronous: ClassVar[bool] = False  # its silos visit a master, and wait for nobody else
    training_layers: ClassVar[bool] = False  # its local work knows BatchNorm and dropout

    @abstractmethod
    def check(self, task: Task, placement: Placement) -> None:
        """Refuse, before any training, what this algorithm cannot run on."""

    @abstractmethod
    def start(self, fed: Fabric) -> Any:
        """The state before round 0."""

    @abstractmethod
    def draw(self, fed: Fabric) -> Any:
        """What chance decides in this round, from common streams."""

    @abstractmethod
    def round(self, fed: Fabric, state: Any, draw: Any) -> Any:
        """The state after one more round."""

    @abstractmethod
    def predict(self, fed: Fabric, state: Any, step: Step) -> AtHubs[Rows]:
        """Scores of these rows, at every hub."""

    def admit(self, task: Task, placement: Placement) -> None:
        """`check`, and refuse layers that its local work does not know."""
        for silo, layer in () if self.training_layers else task.training_layers():
            raise ModelError(
                f"silo {silo}'s block: {layer.name} is in train mode, and {type(self).__name__} "
                "does not know layers that train otherwise than they predict: put it in eval mode "
                "before handing the module over, or use others (nn.GroupNorm, nn.LayerNorm)"
            )
        self.check(task, placement)

    # What it trains, and what can be taken out of it

    @property
    def takes_head(self) -> bool:
        """Whether it can train a head where the silos' embeddings meet."""
        return True

    @property
    def predicts_alone(self) -> bool:
        """Whether every hub predicts something of its own."""
        return False

    def trains(self, task: Task) -> Task:
        """The task as this algorithm trains it."""
        return task

    def blocks(self, fed: Fabric, state: Any) -> dict[str, Theta]:
        """The blocks that the hubs hosted here can export (Remark 1 of the journal)."""
        return fed.read(state.theta)

    def predict_as(self, fed: Fabric, state: Any, step: Step, client: str) -> AtHubs[Rows]:
        """Scores of these rows by the model of one client of the first silo; for records only."""
        raise SettingError(f"clients of {type(self).__name__} have no models of their own")

    # Around its rounds

    def rows_of_round(self, size: int) -> int:
        """The rows of all minibatches of a round, of `size` training rows: an epoch is as many as
        there are."""
        return size

    def fitting(self, rows: Placement) -> Placement:
        """Made-up rows, changed where this algorithm demands something of rows."""
        return rows

    def warm_up(self, part: Part, streams: Streams) -> None:
        """One dry local step at a client, before anyone waits for it: torch's first calls are slow
        enough to miss a deadline."""

    def halts(self, fed: Fabric, round: int) -> str | None:
        """Why the run must end before this round, if it must: the same at every party."""
        return None

    # What is said of it, in records and to people

    def notes(self, fed: Fabric, state: Any) -> dict[str, Any]:
        """What else is to be said of the run so far, in its records: numbers and lists of them."""
        return {}

    def spending(self, fed: Fabric) -> dict[str, Any] | None:
        """What was spent of a privacy budget, for the records."""
        return None

    def protections(self) -> dict[str, str]:
        """What keeps messages of a kind from being read as they are: {kind: in words}."""
        return {}

    def promises(self) -> list[str]:
        """What is promised of the privacy of records, and what that rests on, line by line."""
        return []
