"""What a run has spent of its privacy budget: for records, and as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .accounting import Scales, epsilon_of
from .settings import MODES, Privacy


def spent(
    privacy: Privacy, scales: Scales, counts: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, Any]:
    """The privacy part of a record of the run. `counts`: {silo: (releases, local steps) of each
    row}."""
    summary: dict[str, Any] = {
        "mode": privacy.mode,
        "guarantee": privacy.guarantees,
        "says": MODES[privacy.mode],
        "noise": scales.noise,
        "releases": max(int(releases.max()) for releases, _ in counts.values()),
        "budget_mu": scales.budget,
    }
    if scales.release is not None:
        mus = [scales.mu(releases, steps) for releases, steps in counts.values()]
        summary["mu"] = max(float(mu.max()) for mu in mus)
        summary["mu_mean"] = sum(float(mu.mean()) for mu in mus) / len(mus)
        summary["mu_total"] = float(torch.stack(mus).square().sum(0).max()) ** 0.5
        if privacy.guarantees:
            summary["delta"] = privacy.delta
            summary["epsilon"] = epsilon_of(summary["mu"], privacy.delta)
            summary["epsilon_total"] = epsilon_of(summary["mu_total"], privacy.delta)
    return summary


def spent_in_silo(
    privacy: Privacy, scales: Scales, silo: str, counts: tuple[Tensor, Tensor]
) -> dict[str, Any]:
    """The same for one silo's records, without totals over all silos, which a party does not
    know."""
    summary = spent(privacy, scales, {silo: counts})
    return {name: value for name, value in summary.items() if not name.endswith("_total")}


def in_words(summary: Mapping[str, Any]) -> str:
    """The privacy part of a record, as a sentence."""
    if "mu" not in summary:
        return f"privacy: {summary['says']}; rows are not clipped, so no number can be given"
    budget = "" if summary["budget_mu"] is None else f" of {summary['budget_mu']:.4g}"
    text = f"privacy: the most used record of a silo has spent mu {summary['mu']:.4g}{budget}"
    if "epsilon" in summary:
        text += f" (epsilon {summary['epsilon']:.4g} at delta {summary['delta']:g})"
    if "mu_total" in summary:
        text += f", a person over all silos {summary['mu_total']:.4g}"
    return f"{text}; {summary['says']}"
