"""A block h_j(theta_j; x): any torch module as a pure function of its parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

Params = dict[str, Tensor]
Source = nn.Module | Callable[[], nn.Module]


class Block:
    """A module given as such (its weights are where training starts) or as a function that makes
    one (its weights are drawn from the run's seed). Buffers are constants."""

    def __init__(self, source: Source):
        self._make = None if isinstance(source, nn.Module) else source
        self.module = copy.deepcopy(source) if isinstance(source, nn.Module) else _seeded(source, 0)
        # torch's recurrent layers have no sound batching rule: seen on torch 2.13, vmap of nn.LSTM
        # fails in double precision and is slower than a loop in single.
        self.loop_only = any(isinstance(layer, nn.RNNBase) for layer in self.module.modules())

    def initial(self, seed: int) -> Params:
        """Parameters at round 0."""
        module = self.module if self._make is None else _seeded(self._make, seed)
        return {name: value.detach().clone() for name, value in module.named_parameters()}

    def to(self, dtype: torch.dtype, device: torch.device) -> Block:
        """The same block with its buffers there."""
        moved = copy.copy(self)
        moved.module = copy.deepcopy(self.module).to(dtype=dtype, device=device)
        return moved

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        if self.loop_only and x.is_cuda:  # cuDNN wants pointers that torch.func's tensors lack
            with torch.backends.cudnn.flags(enabled=False):
                return functional_call(self.module, params, (x,))
        return functional_call(self.module, params, (x,))

    def with_params(self, params: Params) -> nn.Module:
        """A module of its own that holds these parameters (Remark 1: a hub exports its block)."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(params[name])
        return module


_drawing = threading.Lock()  # modules draw their weights from torch's one global generator


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
