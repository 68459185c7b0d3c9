"""Records a compiled step as a CUDA graph, which launches all its kernels at once.

A ResNet's step is hundreds of kernels, and launching them one by one takes as long as computing
them. A recording reads and writes the very tensors that it was made with. So results go to one of
two sets of tensors, in turn, and a step that continues from the last results reads them in place. A
set is overwritten only when nobody holds its tensors any more. Otherwise, and for new sizes, the
step runs unrecorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from ..executor import first_line, log
from ..tracing.replay import TensorSizes

Writing = Callable[[Sequence[Tensor], Sequence[Tensor]], object]  # arguments, and where results go
Record = Callable[[Callable[[], object]], Callable[[], object]]


class RecordedStep:
    """A step that writes its results into tensors `like` these. `record`: turns a call into one
    that can be repeated; `most`: the largest number of recordings."""

    def __init__(self, step: Writing, like: Sequence[Tensor], record: Record, most: int):
        self._step, self._record, self._most = step, record, most
        self._like = [(tuple(a.shape), a.stride(), a.dtype, a.device) for a in like]
        self._sets: list[list[Tensor]] = []
        # by sizes, which tensor may be which result of the step before
        self._carried: dict[TensorSizes, dict[int, int]] = {}
        # results of each set that callers may hold
        self._handed_out: list[list[StorageWeakRef]] = [[], []]
        # other tensors that recordings read, and their memory, by argument
        self._inputs: dict[tuple[int, torch.Size], Tensor] = {}
        self._memory: dict[int, Tensor] = {}
        self._plays: dict[tuple[TensorSizes, int], Callable[[], object]] = {}
        self._seen: set[TensorSizes] = set()
        self._off = False

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        sizes = tuple(tuple(a.shape) for a in tensors)
        if self._off or sizes not in self._seen:
            self._seen.add(sizes)
            return self._unrecorded(tensors)
        if not self._sets:
            self._sets = [self._new(), self._new()]
        if sizes not in self._carried:
            self._carried[sizes] = _carried(tensors, self._sets[0])
        carried = self._carried[sizes]
        sets = self._from_and_to(tensors, carried)
        if sets is None:
            return self._unrecorded(tensors)
        source, target = sets
        inputs = self._placed(tensors, carried, source)
        play = self._plays.get((sizes, source)) or self._record_step(sizes, source, inputs, target)
        if play is None:
            return self._unrecorded(tensors)
        play()
        return self._hand_out(target)

    def _unrecorded(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        results = self._new()
        self._step(tensors, results)
        return results

    def _new(self) -> list[Tensor]:
        return [
            torch.empty_strided(*layout, dtype=kind, device=at) for *layout, kind, at in self._like
        ]

    def _from_and_to(
        self, tensors: Sequence[Tensor], carried: Mapping[int, int]
    ) -> tuple[int, int] | None:
        """The sets to read from and to write to; None while too many results are held."""
        free = [all(storage.expired() for storage in handed) for handed in self._handed_out]
        for source, target in ((0, 1), (1, 0)):
            pairs = [(tensors[i], self._sets[source][j]) for i, j in carried.items()]
            if free[target] and (free[source] or all(_same(a, b) for a, b in pairs)):
                return source, target
        return None

    def _placed(
        self, tensors: Sequence[Tensor], carried: Mapping[int, int], source: int
    ) -> list[Tensor]:
        """The tensors in the memory that recordings read."""
        inputs = [
            self._sets[source][carried[i]] if i in carried else self._input(i, a)
            for i, a in enumerate(tensors)
        ]
        moved = [(a, b) for a, b in zip(inputs, tensors, strict=True) if not _same(a, b)]
        if moved:
            _copy([a for a, _ in moved], [b for _, b in moved])
        return inputs

    def _input(self, i: int, a: Tensor) -> Tensor:
        """Memory for a tensor; all its sizes share that of the largest."""
        if (i, a.shape) not in self._inputs:
            room = self._memory.get(i)
            if room is None or room.numel() < a.numel():
                room = self._memory[i] = torch.empty(a.numel(), dtype=a.dtype, device=a.device)
            self._inputs[i, a.shape] = room.as_strided(a.shape, a.stride())
        return self._inputs[i, a.shape]

    def _record_step(
        self, sizes: TensorSizes, source: int, inputs: Sequence[Tensor], target: int
    ) -> Callable[[], object] | None:
        """A new recording; None if there are too many, or recording fails."""
        into = self._sets[target]
        if len(self._plays) < self._most:
            try:
                self._plays[sizes, source] = self._record(lambda: self._step(inputs, into))
            except Exception as problem:  # what cannot be recorded runs unrecorded
                why = first_line(problem)
                log.warning("a compiled step is launched kernel by kernel: %s", why)
                self._off = True
        return self._plays.get((sizes, source))

    def _hand_out(self, target: int) -> list[Tensor]:
        """The tensors of a set under new storages, which show whether anybody holds them."""
        results = [from_dlpack(to_dlpack(a)) for a in self._sets[target]]
        self._handed_out[target] = [StorageWeakRef(a.untyped_storage()) for a in results]
        return results


def _carried(tensors: Sequence[Tensor], results: Sequence[Tensor]) -> dict[int, int]:
    """For each result, the first argument of its shape and type."""
    unmatched = list(range(len(tensors)))
    carried = {}
    for j, result in enumerate(results):
        same = (result.shape, result.dtype)
        i = next((i for i in unmatched if (tensors[i].shape, tensors[i].dtype) == same), None)
        if i is not None:
            unmatched.remove(i)
            carried[i] = j
    return carried


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """In one call, if torch has that private function."""
    if (at_once := getattr(torch, "_foreach_copy_", None)) is not None:
        at_once(list(into), list(values))
        return
    for a, b in zip(into, values, strict=True):
        a.copy_(b)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr()


def recorder(tensors: Sequence[Tensor]) -> Record | None:
    """A recorder for work on these tensors; None if they are not on one GPU."""
    places = {a.device for a in tensors}
    device = places.pop()
    return _GraphRecorder(device) if device.type == "cuda" and not places else None


class _GraphRecorder:
    """Records the kernels launched by a call. All recordings share temporary memory."""

    def __init__(self, device: torch.device):
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream()

    def __call__(self, call: Callable[[], object]) -> Callable[[], object]:
        """Record a call. Work on other GPUs would be neither recorded nor replayed."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            self._stream.wait_stream(before)
            with torch.cuda.stream(self._stream):
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                try:
                    call()
                finally:
                    graph.capture_end()
            before.wait_stream(self._stream)

        def play() -> None:
            with torch.cuda.device(self._device):
                graph.replay()

        return play
