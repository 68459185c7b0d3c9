"""Privacy settings, and the guarantees that follow from them.

Rows of an embedding are clipped to norm C and get Gaussian noise of standard deviation c. Ids are
known after alignment, so neighbouring data sets *replace* one record. One release has mu = 2C/c in
Gaussian differential privacy; T releases have sqrt(T) times as much. There is no amplification by
sampling: the receiver knows the rows of a minibatch. Three modes:

- "frozen": blocks are not trained, and a row's noisy embedding is the same each time it is sent.
- "trained": local gradients are clipped row by row and get noise too (DP-SGD), before anything
  leaves the client: mu^2 = T (2C/c)^2 + S (2/s)^2 with S local steps of the row.
- "noise-only": noise on embeddings alone, as in VAFL. A heuristic without a guarantee: a trained
  block carries information about a record into the embeddings of other rows.

accounting.py converts between mu and (epsilon, delta), spending.py says what a run has spent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from ..core.checked import check_fields
from ..core.errors import SettingError
from ..core.settings import NotNegative, above, at_least, inside
from .accounting import Scales, allowed, mu_of

Mode = Literal["frozen", "trained", "noise-only"]
MODES: dict[str, str] = {
    "frozen": "a guarantee: blocks are not trained, and a row's noisy embedding never changes",
    "trained": "a guarantee: embeddings and local gradients are clipped and noisy",
    "noise-only": "a heuristic, not a guarantee: trained blocks carry records into other rows",
}
HEURISTIC = MODES["noise-only"]

ASSUMED = (
    "neighbours: one record's features in one silo are replaced by any others; `mu_total` is for a "
    "person whose records in all silos are replaced",
    "against: everyone who sees everything that leaves the record's client, in training",
    "noise is drawn from a secret of the client (in a simulation, from the seed: a simulation "
    "protects nobody)",
    "not protected: labels, ids, who holds which row; what is told before training (means and "
    "categories of columns); rows predicted later, whose embeddings are clipped and not noisy",
    "numbers are floating-point ones: attacks on their last bits are not accounted for",
)


@dataclass(frozen=True)
class Privacy:
    """How embeddings that leave clients are perturbed, and how much may be spent on a record.

    Give `noise` itself, or a budget (`mu`, or `epsilon` with `delta`) and how often a row may be
    sent (`releases`). A run with a budget stops before a record would exceed it.
    """

    mode: Annotated[Mode, "what is promised: see the page on privacy"]
    clip: Annotated[float | None, above(0), "C, the largest norm of a row's embedding"] = None
    noise: Annotated[float | None, above(0), "c, standard deviation of the Gaussian noise"] = None
    uniform: Annotated[
        NotNegative, "half width of uniform noise in earlier layers; promises nothing"
    ] = 0
    gradient_clip: Annotated[
        float | None, above(0), "trained: largest norm of a row's gradient"
    ] = None
    gradient_noise: Annotated[
        float | None,
        above(0),
        "trained: s, standard deviation of the gradients' noise / gradient_clip",
    ] = None
    mu: Annotated[float | None, above(0), "the budget of a record in a silo"] = None
    epsilon: Annotated[float | None, above(0), "the budget of a record in a silo, with delta"] = (
        None
    )
    delta: Annotated[float, inside(0, 1), "of (epsilon, delta)"] = 1e-5
    releases: Annotated[int | None, at_least(1), "T, how often a row may be sent on the budget"] = (
        None
    )

    def __post_init__(self) -> None:
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Refuse settings that contradict each other, or whose budget cannot be accounted for."""
        if self.mu is not None and self.epsilon is not None:
            raise SettingError("privacy: mu and epsilon are both the budget: give only one of them")
        if self.clip is None and (self.guarantees or self.budget is not None):
            raise SettingError(
                "privacy: noise without clipping cannot be accounted for: give clip, or "
                'mode = "noise-only" without a budget'
            )
        if self.mode == "trained" and self.gradient_clip is None:
            raise SettingError("privacy: mode trained clips gradients too: give gradient_clip")
        for name in ("gradient_clip", "gradient_noise"):
            if self.mode != "trained" and getattr(self, name) is not None:
                raise SettingError(f'privacy: {name} is for mode = "trained"')
        self.scales(1)

    @property
    def guarantees(self) -> bool:
        return self.mode != "noise-only"

    @property
    def budget(self) -> float | None:
        """The budget as mu."""
        return self.mu if self.epsilon is None else mu_of(self.epsilon, self.delta)

    def scales(self, steps: int) -> Scales:
        """The noise of a run with so many local steps for each release. Noise that is not given is
        chosen so that the releases use up the budget, half of it on gradients."""
        noise, gradient, budget = self.noise, self.gradient_noise, self.budget
        missing = noise is None or (self.mode == "trained" and gradient is None)
        if missing:
            times = 1 if self.mode == "frozen" else self.releases
            if budget is None or times is None:
                raise SettingError(
                    "privacy: give the noise, or a budget (mu or epsilon) and how often a row may "
                    "be sent on it (releases)"
                )
            left = budget**2 / times
            if noise is not None:
                left -= (2 * self.clipped / noise) ** 2
            if gradient is not None:
                left -= steps * (2 / gradient) ** 2
            if left <= 0:
                raise SettingError(
                    f"privacy: the budget (mu {budget:.4g}) is spent by {times} releases before "
                    "all noise is chosen: give more noise, fewer releases or a larger budget"
                )
            both = noise is None and gradient is None and self.mode == "trained"
            share = left / 2 if both else left
            if noise is None:
                noise = 2 * self.clipped / math.sqrt(share)
            if self.mode == "trained" and gradient is None:
                gradient = 2 * math.sqrt(steps / share)
        assert noise is not None
        release = None if self.clip is None else (2 * self.clip / noise) ** 2
        step = 0.0 if gradient is None else (2 / gradient) ** 2
        if budget is not None and release is not None and release + step > allowed(budget):
            raise SettingError(
                f"privacy: the budget (mu {budget:.4g}) is spent before the first round: one "
                f"release alone is mu {math.sqrt(release + step):.4g}; give more noise or a larger "
                "budget"
            )
        return Scales(noise, gradient or 0.0, budget, release, step)

    @property
    def clipped(self) -> float:
        """C, which a budget needs."""
        assert self.clip is not None
        return self.clip

    def statement(self) -> list[str]:
        """The guarantee and its assumptions, as lines of text."""
        first = f"privacy mode {self.mode}: {MODES[self.mode]}"
        return [first, *ASSUMED] if self.guarantees else [first]
