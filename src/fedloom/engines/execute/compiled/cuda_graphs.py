"""A compiled step recorded and started in one piece, on a GPU (CUDA graphs).

A ResNet's step is hundreds of kernels, and starting them one by one takes as long as computing
them. A recording starts them at once, but reads and writes the very tensors that it was made with.
So results go to one of two sets of tensors, in turn, and a step that goes on from the last results
reads them where they are. A set is written to again only when nobody holds what was handed out of
it; as long as somebody does, and for sizes that come for the first time, the step runs unrecorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from ..executor import first_line, log
from ..tracing.player import Sizes

Step = Callable[[Sequence[Tensor], Sequence[Tensor]], object]  # of what is given, into what
Record = Callable[[Callable[[], object]], Callable[[], object]]


class Recorded:
    """A step that writes its results into tensors `like` these, whatever it is given. `record`:
    makes of a call one that can be made again; `most`: so many recordings at most."""

    def __init__(self, step: Step, like: Sequence[Tensor], record: Record, most: int):
        self._step, self._record, self._most = step, record, most
        self._like = [(tuple(a.shape), a.stride(), a.dtype, a.device) for a in like]
        self._sets: list[list[Tensor]] = []
        # by sizes, which tensor may be which result of the step before
        self._carried: dict[Sizes, dict[int, int]] = {}
        self._handed: list[list[StorageWeakRef]] = [[], []]  # what was handed out of each set
        self._others: dict[tuple[int, torch.Size], Tensor] = {}  # what else recordings read,
        self._room: dict[int, Tensor] = {}  # and where there is most room for it
        self._plays: dict[tuple[Sizes, int], Callable[[], object]] = {}
        self._seen: set[Sizes] = set()
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
        mine = self._placed(tensors, carried, source)
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
        return [torch.empty_strided(*how, dtype=kind, device=at) for *how, kind, at in self._like]

    def _from_and_to(
        self, tensors: Sequence[Tensor], carried: Mapping[int, int]
    ) -> tuple[int, int] | None:
        """Which set is read and which is written to; None while too much is held."""
        free = [all(one.expired() for one in handed) for handed in self._handed]
        for source, target in ((0, 1), (1, 0)):
            pairs = [(tensors[i], self._sets[source][j]) for i, j in carried.items()]
            if free[target] and (free[source] or all(_same(a, b) for a, b in pairs)):
                return source, target
        return None

    def _placed(
        self, tensors: Sequence[Tensor], carried: Mapping[int, int], source: int
    ) -> list[Tensor]:
        """These tensors where recordings read them."""
        mine = [
            self._sets[source][carried[i]] if i in carried else self._other(i, a)
            for i, a in enumerate(tensors)
        ]
        moved = [(a, b) for a, b in zip(mine, tensors, strict=True) if not _same(a, b)]
        if moved:
            _copy([a for a, _ in moved], [b for _, b in moved])
        return mine

    def _other(self, i: int, a: Tensor) -> Tensor:
        """Room for a tensor; all sizes share that of the largest."""
        if (i, a.shape) not in self._others:
            room = self._room.get(i)
            if room is None or room.numel() < a.numel():
                room = self._room[i] = torch.empty(a.numel(), dtype=a.dtype, device=a.device)
            self._others[i, a.shape] = room.as_strided(a.shape, a.stride())
        return self._others[i, a.shape]

    def _play(
        self, sizes: Sizes, source: int, mine: Sequence[Tensor], target: int
    ) -> Callable[[], object] | None:
        """A new recording; None if there are enough, or it cannot be made."""
        into = self._sets[target]
        if len(self._plays) < self._most:
            try:
                self._plays[sizes, source] = self._record(lambda: self._step(mine, into))
            except Exception as problem:  # whatever cannot be recorded is started as before
                why = first_line(problem)
                log.warning("a compiled step is started kernel by kernel: %s", why)
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


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """In one call, where torch has that: it is a part that may go."""
    if (at_once := getattr(torch, "_foreach_copy_", None)) is not None:
        at_once(list(into), list(values))
        return
    for a, b in zip(into, values, strict=True):
        a.copy_(b)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr()


def recorder(tensors: Sequence[Tensor]) -> Record | None:
    """What records work on these tensors; None where it need not be, or cannot."""
    places = {a.device for a in tensors}
    device = places.pop()
    return _Recorder(device) if device.type == "cuda" and not places else None


class _Recorder:
    """Records what is started on a GPU. What it needs in between, all recordings share."""

    def __init__(self, device: torch.device):
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream()

    def __call__(self, call: Callable[[], object]) -> Callable[[], object]:
        """What another GPU is given meanwhile would be neither recorded nor played."""
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
