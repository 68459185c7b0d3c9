"""Optimisers and hubs' steps that the battery plays algorithms with."""

from __future__ import annotations

from ..shared.hub_steps import HubAdam, Relaxed
from ..shared.optimizers import SGD, Adam, AdamW

KEPT_ADAM = Adam(state="kept", clip_norm=0.5, weight_decay=0.01)
KEPT_MOMENTUM = SGD(state="kept", momentum=0.9, nesterov=True)
CLIPPED = AdamW(clip_norm=0.1)
COASTING = Relaxed("auto", momentum=0.5)
HUB_ADAM = HubAdam(0.05)
