"""A block h_j(theta_j; x): any torch module as a pure function of its parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..core.errors import InputError, ModelError
from ..core.settings import shown
from .dropout import Dropout
from .training_layers import (
    STATISTICS,
    BatchNorm,
    batch_norms,
    put_in_eval_mode,
    training_layers,
    with_own_layers,
)

Params = dict[str, Tensor]
Source = nn.Module | Callable[[], nn.Module]


class First(NamedTuple):
    """A linear first layer: the name of its weights, and whether rows are flattened before it."""

    weights: str
    flattens: bool


class Block:
    """A module, or a function that makes one.

    Training starts from the weights of a module; the weights of a made one are drawn from the run's
    seed. Buffers, and parameters that do not require a gradient, are constants; but the running
    statistics of BatchNorm in train mode are among the block's parameters (`statistics`)."""

    def __init__(self, source: Source):
        if not isinstance(source, nn.Module) and not callable(source):
            raise ModelError(f"a block is a torch.nn.Module or makes one, not {shown(source)}")
        self.source = source
        self._make = None if isinstance(source, nn.Module) else source
        self._given = copy.deepcopy(source) if isinstance(source, nn.Module) else _seeded(source, 0)
        self.module = with_own_layers(self._given)
        layers, norms = training_layers(self.module), batch_norms(self.module)
        self.drops = any(isinstance(layer, Dropout) for layer in layers)
        self.trains_otherwise = bool(layers)  # than it predicts
        self.statistics = tuple(f"{at}{own}" for at in norms for own in STATISTICS)
        # torch's recurrent layers have no sound batching rule: seen on torch 2.13, vmap of nn.LSTM
        # fails in double precision and is slower than a loop in single.
        recurrent = (nn.RNNBase, nn.RNNCellBase)
        self.loop_only = any(isinstance(layer, recurrent) for layer in self.module.modules())
        self._home = threading.get_ident()
        self._copies: dict[int, nn.Module] = {}  # of other threads

    @property
    def origin(self) -> Hashable:
        """What the module was made from: equal for equal blocks."""
        if isinstance(self._make, partial):
            return (self._make.func, str(self._make.args), str(self._make.keywords))
        return self._make or id(self)

    @cached_property
    def first(self) -> First | None:
        """The first layer, if it is linear: of an nn.Linear, or an nn.Sequential that begins with
        one (perhaps after nn.Flatten)."""
        layers, hooks = [("", self.module)], [self.module._forward_pre_hooks]
        if type(self.module) is nn.Sequential:
            layers = [(f"{at}.", layer) for at, layer in self.module.named_children()]
        flattens = bool(layers) and _flattens(layers[0][1])
        where, layer = layers[flattens] if len(layers) > flattens else ("", None)
        if type(layer) is not nn.Linear:
            return None
        for entry_layer in (layers[0][1], layer):
            hooks += [entry_layer._forward_hooks, entry_layer._forward_pre_hooks]
        name = f"{where}weight"
        elsewhere = len(_slots_of(self.module).get(name, ())) != 1
        if elsewhere or any(hooks) or not layer.weight.requires_grad:
            return None
        return First(name, flattens)

    def initial(self, seed: int) -> Params:
        """Parameters at round 0."""
        module = self._given if self._make is None else _seeded(self._make, seed)
        params = {name: a for name, a in module.named_parameters() if a.requires_grad}
        buffers = dict(module.named_buffers())
        # torch counts batches in whole numbers, and a mean over clients may be none
        statistics = {name: buffers[name].to(torch.get_default_dtype()) for name in self.statistics}
        return {name: a.detach().clone() for name, a in (params | statistics).items()}

    def to(self, dtype: torch.dtype, device: torch.device) -> Block:
        """A copy of the block with this dtype, on this device."""
        moved = copy.copy(self)
        moved._given = copy.deepcopy(self._given).to(dtype=dtype, device=device)
        moved.module = with_own_layers(moved._given)
        moved._home, moved._copies = threading.get_ident(), {}
        return moved

    def _of_thread(self) -> nn.Module:
        """This thread's copy of the module: a module contains the parameters while it is called."""
        thread = threading.get_ident()
        if thread == self._home:
            return self.module
        if thread not in self._copies:
            self._copies[thread] = copy.deepcopy(self.module)
        return self._copies[thread]

    def __call__(self, params: Params, x: Tensor, *more: Any) -> Tensor:
        """h of every row, as it predicts. `more`: further arguments of the module's forward, as
        constants."""
        return self._called(params, (x, *more), None)[0]

    def in_training(
        self, params: Params, x: Tensor, counts: Tensor, *more: Any, keys: Tensor | None = None
    ) -> tuple[Tensor, Params]:
        """h of every row as it trains, and the running statistics after it. `counts`: a mask of the
        rows that BatchNorm takes the mean and variance of; `keys`: of rows, for dropout."""
        return self._called(params, (x, *more), counts, keys)

    def _called(
        self,
        params: Params,
        args: tuple[Any, ...],
        counts: Tensor | None,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Params]:
        """As torch.func.functional_call, but it finds the places of parameters only once."""
        module = self._of_thread()
        if module not in _known:
            _known[module] = _slots_of(module), training_layers(module)
        known, layers = _known[module]
        slots = [(at, own, value) for name, value in params.items() for at, own in known[name]]
        unnamed = (name for name in self.statistics if name not in params)
        slots += [(at, own, at[own]) for name in unnamed for at, own in known[name]]
        before = [at[own] for at, own, _ in slots]
        try:
            for at, own, value in slots:
                at[own] = value
            _tell(layers, counts, keys)
            # cuDNN needs pointers that torch.func's tensors lack
            on_gpu = self.loop_only and args[0].is_cuda
            with torch.backends.cudnn.flags(enabled=False) if on_gpu else nullcontext():
                result = module(*args)
            after = {name: at[own] for name in self.statistics for at, own in known[name]}
        finally:
            for (at, own, _), value in zip(slots, before, strict=True):
                at[own] = value
            _tell(layers, None, None)
        return _as_given(result, params), after

    def with_params(self, params: Params) -> nn.Module:
        """A new module with these parameters (Remark 1: a hub exports its block). Layers that train
        otherwise than they predict are in eval mode."""
        module = copy.deepcopy(self._given)
        put_in_eval_mode(module)
        buffers = {name: value for name, value in module.named_buffers() if name in self.statistics}
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *buffers.items()):
                if name in params:
                    whole = not value.is_floating_point()
                    value.copy_(params[name].round() if whole else params[name])
        return module


def _tell(layers: TrainingLayers, counts: Tensor | None, keys: Tensor | None) -> None:
    """Which rows count, and what their masks are named by; None: the module predicts."""
    for layer in layers:
        if isinstance(layer, Dropout):
            layer.keys, layer.uses = keys, 0
        else:
            layer.counts = counts


def _flattens(layer: nn.Module) -> bool:
    """Whether a layer flattens rows."""
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


ParameterSlots = dict[str, list[tuple[dict[str, Any], str]]]
TrainingLayers = list[BatchNorm | Dropout]
_known: WeakKeyDictionary[nn.Module, tuple[ParameterSlots, TrainingLayers]] = WeakKeyDictionary()


def _slots_of(module: nn.Module) -> ParameterSlots:
    """The places of each parameter in a module: several if layers share it; and of running
    statistics."""
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for layer in module.modules():
        for own, value in layer._parameters.items():
            places.setdefault(id(value), []).append((layer._parameters, own))
    slots = {name: places[id(value)] for name, value in module.named_parameters()}
    return slots | {
        f"{at}{own}": [(layer._buffers, own)]
        for at, layer in batch_norms(module).items()
        for own in STATISTICS
    }


def _as_given(result: Tensor, params: Params) -> Tensor:
    """The result in the precision of the parameters, also under torch.autocast."""
    for value in params.values():
        return result.to(value.dtype)
    return result


_drawing = threading.Lock()  # modules draw their weights from torch's global generator


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with _drawing:
        state = torch.get_rng_state()
        try:
            torch.default_generator.manual_seed(seed)
            module = make()
        except InputError:
            raise
        except Exception as problem:  # the user's function may raise anything
            reason = f"{type(problem).__name__}: {problem}"
            raise ModelError(f"the function that makes a block failed ({reason})") from problem
        finally:
            torch.set_rng_state(state)
    if not isinstance(module, nn.Module):
        raise ModelError(f"a block's function must make a torch.nn.Module, not {shown(module)}")
    return module
