"""A compiled step recorded and started in one piece, on a GPU (CUDA graphs).

A ResNet's step is hundreds of kernels, and starting them one by one takes as long as computing
them. A recording starts them at once, but reads and writes the very tensors that it was made with.
So results go to one of two sets of tensors, in turn, and a step that goes on from the last results
reads them where they are. A set is written to again only when nobody holds what was handed out of
it; as long as somebody does, and for sizes that come for the first time, the step runs unrecorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from .replay import Sizes, log

MOST = 128  # recordings of a step: two for each number of rows

Step = Callable[[Sequence[Tensor], Sequence[Tensor]], object]  # of what is given, into what
Record = Callable[[Callable[[], object]], Callable[[], object]]


class Recorded:
    """A step that writes its results into tensors `like` these, whatever it is given. `record`:
    makes of a call one that can be made again."""

    def __init__(self, step: Step, like: Sequence[Tensor], record: Record):
        self._step, self._record = step, record
        self._like = [(tuple(a.shape), a.dtype, a.device) for a in like]
        self._sets: list[list[Tensor]] = []
        self._carried: dict[int, int] = {}  # which tensor may be which result of the step before
        self._handed: list[list[StorageWeakRef]] = [[], []]  # what was handed out of each set
        self._others: dict[tuple[int, torch.Size], Tensor] = {}  # what else recordings read
        self._plays: dict[tuple[Sizes, int], Callable[[], object]] = {}
        self._seen: set[Sizes] = set()
        self._off = False

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        sizes = tuple(tuple(a.shape) for a in tensors)
        if self._off or sizes not in self._seen:
            self._seen.add(sizes)
            return self._unrecorded(tensors)
        sets = self._from_and_to(tensors)
        if sets is None:
            return self._unrecorded(tensors)
        source, target = sets
        mine = self._placed(tensors, source)
        play = self._plays.get((sizes, source)) or self._play(sizes, source, mine, target)
        if play is None:
            return self._unrecorded(tensors)
        play()
        return self._hand_out(target)

    def _unrecorded(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        results = self._new()
        self._step(tensors, results)
        return results

    def _new(self) -> list[Tensor]:
        return [torch.empty(size, dtype=kind, device=at) for size, kind, at in self._like]

    def _from_and_to(self, tensors: Sequence[Tensor]) -> tuple[int, int] | None:
        """Which set is read and which is written to; None while too much is held."""
        if not self._sets:
            self._sets = [self._new(), self._new()]
            self._carried = _carried(tensors, self._sets[0])
        free = [all(one.expired() for one in handed) for handed in self._handed]
        for source, target in ((0, 1), (1, 0)):
            pairs = [(tensors[i], self._sets[source][j]) for i, j in self._carried.items()]
            if free[target] and (free[source] or all(_same(a, b) for a, b in pairs)):
                return source, target
        return None

    def _placed(self, tensors: Sequence[Tensor], source: int) -> list[Tensor]:
        """These tensors where recordings read them."""
        mine = []
        for i, a in enumerate(tensors):
            if i in self._carried:
                mine.append(self._sets[source][self._carried[i]])
                continue
            if (i, a.shape) not in self._others:
                self._others[i, a.shape] = torch.empty_like(a)
            mine.append(self._others[i, a.shape])
        moved = [(a, b) for a, b in zip(mine, tensors, strict=True) if not _same(a, b)]
        if moved:
            torch._foreach_copy_([a for a, _ in moved], [b for _, b in moved])
        return mine

    def _play(
        self, sizes: Sizes, source: int, mine: Sequence[Tensor], target: int
    ) -> Callable[[], object] | None:
        """A new recording; None if there are enough, or it cannot be made."""
        into = self._sets[target]
        if len(self._plays) < MOST:
            try:
                self._plays[sizes, source] = self._record(lambda: self._step(mine, into))
            except Exception as problem:  # whatever cannot be recorded is started as before
                said = str(problem).strip().splitlines() or [type(problem).__name__]
                log.warning("a compiled step is started kernel by kernel: %s", said[0])
                self._off = True
        return self._plays.get((sizes, source))

    def _hand_out(self, target: int) -> list[Tensor]:
        """A set's tensors under new storages, by which it is seen whether anything holds them."""
        results = [from_dlpack(to_dlpack(a)) for a in self._sets[target]]
        self._handed[target] = [StorageWeakRef(a.untyped_storage()) for a in results]
        return results


def _carried(tensors: Sequence[Tensor], results: Sequence[Tensor]) -> dict[int, int]:
    """For each result the first tensor that is like it."""
    left = list(range(len(tensors)))
    found = {}
    for j, result in enumerate(results):
        same = (result.shape, result.dtype)
        i = next((i for i in left if (tensors[i].shape, tensors[i].dtype) == same), None)
        if i is not None:
            left.remove(i)
            found[i] = j
    return found


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr()


def recorder(tensors: Sequence[Tensor]) -> Record | None:
    """What records work on these tensors; None where it need not be, or cannot."""
    return _Recorder() if all(a.is_cuda for a in tensors) else None


class _Recorder:
    """Records what is started on a GPU. What it needs in between, all recordings share."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, call: Callable[[], object]) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                call()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph.replay
