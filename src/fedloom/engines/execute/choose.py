"""Chooses the executors of a run, in the order in which they are asked.

`executor` names the first one; without it, `replay` and `compile` choose one of FedLoom's. An
executor of another package is registered by name (`fedloom.executors`) and chosen the same way.
"""

from __future__ import annotations

from ...core.errors import SettingError
from ...core.registry import executors
from .compiled import Compiled
from .executor import Executors, Options
from .native import Native
from .plain import Plain
from .traced import Traced

for _ours in (Plain, Traced, Compiled, Native):
    executors.register(_ours.name)(_ours)


def choose(
    options: Options, *, name: str | None = None, compile: bool = False, by_size: bool = True
) -> Executors:
    """`name`: the executor to ask first. Without it, `compile` is native on a CPU (unless the run
    says how many clients are computed at once, and not their size) and compiled on a GPU."""
    if name is not None and compile:
        raise SettingError(f"executor {name!r} and compile: give one of them")
    if name is None and compile:
        on_cpu = options.device.type == "cpu"
        name = "native" if on_cpu and by_size else "traced" if on_cpu else "compiled"
    first = executors[name or "traced"]
    if first is Native and not (options.device.type == "cpu" and by_size):
        raise SettingError("executor native: it is for a CPU, and has no chunks of clients")
    chain = [first(options)]
    if first not in (Plain, Traced, Compiled):  # what they refuse is traced
        chain.append(Traced(options))
    if first is not Plain:
        chain.append(Plain(options))
    return Executors(chain)
