"""Computes chunks ahead in threads: torch's own threads share one operation, these share the
clients."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
_pools: dict[int, ThreadPoolExecutor] = {}
_making = threading.Lock()


def ahead(items: Iterable[T], work: Callable[[T], object]) -> Iterator[T]:
    """The items in order, each after its work; at most as many are ahead as there are threads."""
    threads = torch.get_num_threads()
    if threads < 2 or autocast() or threading.current_thread() is not threading.main_thread():
        yield from items
        return
    pool, waiting = _pool(threads), deque[tuple[T, Future[object]]]()
    try:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > threads:
                yield _done(*waiting.popleft())
        while waiting:
            yield _done(*waiting.popleft())
    finally:
        for _, future in waiting:
            future.cancel()


@contextmanager
def quietly() -> Iterator[None]:
    """Use one torch thread: several would spin-wait on the cores of the worker threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def autocast() -> bool:
    """Whether torch.autocast is on in this thread; other threads would not know."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _done(item: T, future: Future[object]) -> T:
    future.result()
    return item


def _pool(threads: int) -> ThreadPoolExecutor:
    """A pool of threads, each with a single torch thread."""
    with _making:
        if threads not in _pools:
            ready = threading.Barrier(threads + 1)

            def single() -> None:
                torch.get_num_threads()  # the first call in a thread resets its number
                torch.set_num_threads(1)
                ready.wait()

            pool = _pools[threads] = ThreadPoolExecutor(threads, "fedloom", single)
            for _ in range(threads):
                pool.submit(int)
            ready.wait()
            torch.set_num_threads(threads)  # the calls above changed the default of new threads
        return _pools[threads]
