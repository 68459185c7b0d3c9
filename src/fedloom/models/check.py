"""Checks whether a module can be trained by clients that each hold some of the rows.

Its output for a row must depend on that row alone: clients hold different rows of a minibatch, and
padding adds rows without meaning. (BatchNorm is the exception: it knows the rows of a client that
count, see training_layers.py.) And `torch.func.vmap` over clients must give the same result as a
loop (recurrent layers, which vmap cannot run, are run in a loop). The error names the layer at
fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.parameter import UninitializedParameter

from ..core.errors import ModelError
from ..core.gradients import grad
from .block import Block, Params
from .training_layers import BATCH_NORMS, training_layers

DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
_EVAL = "put it in eval mode before handing the module over"

Fault = Callable[[nn.Module, Tensor], bool]


def check_block(
    block: Block, x: Tensor, dtype: torch.dtype, where: str, is_head: bool = False
) -> int:
    """Try a block on a few real rows. Returns the width of its output, or refuses the block.
    `is_head`: BatchNorm and dropout are not allowed in it."""
    module = block.module
    for own_layer in training_layers(module) if is_head else ():
        raise ModelError(
            f"{where}: {own_layer.name} is in train mode, and silos and hubs use the head on other "
            f"rows: move it into the blocks, or {_EVAL}"
        )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ModelError(f"{where}: {name} has no size yet: give lazy layers their sizes")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(f"{where}: the module has no parameters to train")
    for name, layer in module.named_modules():
        _check_layer(f"{where}: layer {name or '(the module itself)'}", layer)
    local = block.to(dtype, torch.device("cpu"))
    x = (x.to(dtype) if x.is_floating_point() else x)[torch.arange(3) % len(x)].clone()
    params = {n: p.detach() for n, p in local.module.named_parameters() if p.requires_grad}
    passed = x.clone()
    out = _run(local, params, passed, where)
    if not torch.equal(passed, x):
        layer = _first(local.module, x, _changes_input)
        raise ModelError(f"{where}: layer {layer} changes its input in place: use inplace=False")
    if out.ndim != 2 or out.shape[0] != len(x):
        raise ModelError(
            f"{where}: a block must give one row of scores or embedding per row of input, shape "
            f"[rows, width]; {len(x)} rows gave shape {tuple(out.shape)}"
        )
    params |= {n: b.to(dtype) for n, b in local.module.named_buffers() if n in local.statistics}
    if block.trains_otherwise:
        counts, keys = torch.ones(len(x), dtype=torch.bool), torch.arange(len(x))
        try:
            out = local.in_training(params, x, counts, keys=keys)[0].detach()
        except ModelError as problem:
            raise ModelError(f"{where}: {problem}") from None
    if not bool(torch.isfinite(out).all()):
        raise ModelError(f"{where}: the untrained module gives NaN or infinity for the first rows")
    if _is_random(local.module, x):
        layer = _first(local.module, x, _is_random)
        raise ModelError(f"{where}: layer {layer} gives another result each time: {_EVAL}")
    if _mixes_rows(local.module, x):
        layer = _first(local.module, x, _mixes_rows)
        raise ModelError(
            f"{where}: layer {layer} mixes rows: the result for one row changes with the others. "
            "Use a layer that computes each row by itself (GroupNorm, LayerNorm; recurrent layers "
            "with batch_first=True), or nn.BatchNorm1d, 2d or 3d with running statistics"
        )
    if not block.loop_only and not _vmaps(local, params, x, where):
        exact = block.to(torch.float64, torch.device("cpu"))  # perhaps they differ by rounding only
        doubles = {name: p.double() for name, p in params.items()}
        if not _vmaps(exact, doubles, x.double() if x.is_floating_point() else x, where):
            raise ModelError(f"{where}: torch.func.vmap over clients differs from a loop")
    return out.shape[1]


def under_vmap(f: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """f as an engine runs it: for several clients at once, here for one."""
    return vmap(f)(*(a[None] for a in args))[0]


def _check_layer(where: str, layer: nn.Module) -> None:
    """Refuse norms with statistics that are not FedLoom's, and dropout, in train mode."""
    kind = type(layer).__name__
    if getattr(layer, "track_running_stats", False) and layer.training:
        raise ModelError(
            f"{where} is {kind} in train mode, with running statistics: use nn.BatchNorm1d, 2d or "
            f"3d itself, or nn.GroupNorm, or freeze it: {_EVAL}"
        )
    if isinstance(layer, tuple(BATCH_NORMS)) and not layer.track_running_stats:
        raise ModelError(
            f"{where} is {kind} without running statistics, which predictions need: use "
            "track_running_stats=True"
        )
    rate = getattr(layer, "p" if isinstance(layer, DROPOUTS) else "dropout", 0)
    if layer.training and isinstance(rate, float) and rate > 0:
        raise ModelError(
            f"{where} is {kind} with dropout {rate} in train mode: it draws from torch's global "
            "generator, so no two engines would agree. Use nn.Dropout, 1d, 2d or 3d itself, set it "
            f"to 0, or {_EVAL}"
        )


def _run(block: Block, params: Params, x: Tensor, where: str) -> Tensor:
    try:
        out = block(params, x)
    except Exception as problem:
        whole = "" if x.is_floating_point() else " (whole numbers; x.float() if they are not codes)"
        raise ModelError(
            f"{where}: the module does not take rows of shape {tuple(x.shape[1:])}{whole}: "
            f"{problem}"
        ) from problem
    if not isinstance(out, Tensor):
        raise ModelError(f"{where}: the module returns {type(out).__name__}, not a tensor")
    return out.detach()


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, relative to the largest number."""
    tolerance = 1e-8 if a.dtype == torch.float64 else 1e-4
    largest = float(b.nan_to_num().abs().max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * max(1, largest), equal_nan=True)


def _apply(layer: nn.Module, x: Tensor) -> Tensor | None:
    """A layer's output (the first, if several); None where it has no row axis."""
    with torch.no_grad():
        out = layer(x.clone())
    out = out[0] if isinstance(out, tuple) else out
    has_rows = isinstance(out, Tensor) and out.ndim > 0 and out.shape[0] == len(x)
    return out if has_rows else None


def _changes_input(layer: nn.Module, x: Tensor) -> bool:
    passed = x.clone()
    with torch.no_grad():
        layer(passed)
    return not torch.equal(passed, x)


def _is_random(layer: nn.Module, x: Tensor) -> bool:
    first, second = _apply(layer, x), _apply(layer, x)
    return first is not None and second is not None and not _equal(first, second)


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _mixes_rows(layer: nn.Module, x: Tensor) -> bool:
    """Whether any row's result changes when it is alone, or when rows are reordered."""
    out, turned = _apply(layer, x), _apply(layer, x.flip(0))
    if out is None or turned is None:
        return False
    alone = [_apply(layer, x[i : i + 1]) for i in range(len(x))]
    rows = [row for row in alone if row is not None]
    return not (_same(turned.flip(0), out) and len(rows) == len(x) and _same(torch.cat(rows), out))


def _leaves(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in module.named_modules():
        if not any(True for _ in layer.children()):
            yield name or "(the module itself)", layer


def _inputs(module: nn.Module, x: Tensor) -> dict[nn.Module, Tensor]:
    """The input of each leaf layer when the module runs on x."""
    seen: dict[nn.Module, Tensor] = {}

    def remember(layer: nn.Module, args: tuple[object, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            seen.setdefault(layer, args[0].detach().clone())

    handles = [layer.register_forward_pre_hook(remember) for _, layer in _leaves(module)]
    try:
        with torch.no_grad():
            module(x.clone())
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _first(module: nn.Module, x: Tensor, at_fault: Fault) -> str:
    """The name of the first layer, in order of execution, that is at fault; else the module."""
    names = {layer: name for name, layer in _leaves(module)}
    for layer, inputs in _inputs(module, x).items():
        try:
            if at_fault(layer, inputs):
                return f"{names[layer]} ({type(layer).__name__})"
        except Exception:
            continue
    return f"{type(module).__name__} itself (its own forward)"


def _vmaps(block: Block, params: Params, x: Tensor, where: str) -> bool:
    """Whether vmap over clients gives the same as a loop. Refuses a module that vmap cannot run."""

    counts, keys = torch.arange(len(x)) < 2, torch.arange(len(x))

    def both(params: Params, x: Tensor) -> tuple[Tensor, Params]:
        if not block.trains_otherwise:
            return block(params, x), grad(lambda p: block(p, x).sum())(params)
        out, after = block.in_training(params, x, counts, keys=keys)
        by_params = grad(
            lambda p: block.in_training(p, x, counts, keys=keys)[0][counts].square().sum()
        )
        return out, {**by_params(params), **after}

    clients = [{name: p * (1 + 0.1 * k) for name, p in params.items()} for k in range(2)]
    stacked = {name: torch.stack([c[name] for c in clients]) for name in params}
    rows = torch.stack([x, x.flip(0)])
    for own_params, dims in ((clients, 0), ([params, params], None)):
        try:
            outputs, gradients = vmap(both, (dims, 0))(stacked if dims == 0 else params, rows)
        except Exception as problem:
            layer = _first(block.module, x, _not_vmappable)
            raise ModelError(
                f"{where}: layer {layer} cannot be run for several clients at once by "
                f"torch.func.vmap ({str(problem).splitlines()[0]}). Write it without .item(), "
                "in-place changes of its state or decisions that depend on the data"
            ) from problem
        for k in range(2):
            wanted, gradient = both(own_params[k], rows[k])
            if not _same(outputs[k], wanted):
                return False
            if not all(_same(gradients[n][k], gradient[n]) for n in params):
                return False
    return True


def _not_vmappable(layer: nn.Module, x: Tensor) -> bool:
    params: Params = dict(layer.named_parameters())
    try:
        vmap(lambda rows: functional_call(layer, params, (rows,)))(torch.stack([x, x]))
    except Exception:
        return True
    return False
