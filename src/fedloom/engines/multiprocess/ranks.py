"""Ranks: the processes of one owner that torchrun starts, and how they stay in step.

All ranks run the same program and meet at the same places. At every meeting each rank says where it
is, and whether it has failed. A failure of one rank is raised at all, and ranks at different places
are detected. A rank that is gone (its connections are closed), or silent for too long, is a
LostError.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported first: else its functions keep a group for ever
from torch import Tensor

from ...core import errors
from ...core.errors import FedLoomError, InterruptedRun, LostError, ProtocolError

WAIT = 600.0  # default seconds that a rank waits for another
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def several() -> bool:
    """Whether this process is one of several that torchrun started."""
    return all(name in os.environ for name in NEEDED) and int(os.environ["WORLD_SIZE"]) > 1


def speaks() -> bool:
    """Whether this process prints what all of them know."""
    return not several() or os.environ["RANK"] == "0"


def restarted() -> bool:
    """Whether torchrun has restarted all processes after one was lost."""
    return several() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def joined(wait: float = WAIT) -> Iterator[Ranks | None]:
    """The ranks, with this process as one of them; None if it is alone. An error of one rank ends
    all."""
    if not several():
        yield None
        return
    ranks = Ranks(wait)
    try:
        yield ranks
        ranks.numbers("the end")
    except BaseException as problem:
        ranks.tell(problem)
        raise
    finally:
        if not ranks.lost:  # leaving could wait for a lost rank
            dist.destroy_process_group()  # ends its threads, which would abort at Python's exit


class Ranks:
    """All processes, seen from this one. `wait`: the seconds to wait for another."""

    def __init__(self, wait: float = WAIT):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._local = int(os.environ.get("LOCAL_RANK", self.rank))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self._wait, self.lost = wait, False
        self._known: BaseException | None = None  # the last failure that all ranks know
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self.nccl = gpus >= local_size and dist.is_nccl_available()  # a GPU for each rank
        self._gpu = self._local % gpus if gpus else 0
        if gpus:
            torch.cuda.set_device(self._gpu)
        with self._detecting_loss():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if self.nccl else "gloo", timeout=timedelta(seconds=wait)
            )

    def __str__(self) -> str:
        return f"{self.size} ranks ({'NCCL' if self.nccl else 'gloo'})"

    def device(self, name: str) -> str:
        """`cuda` without a number is this rank's own GPU."""
        return f"cuda:{self._gpu}" if name == "cuda" else name

    # Meetings: `at` names the place, which must be the same at all ranks

    def numbers(self, at: str, own: int = 0) -> list[int]:
        """The numbers of all ranks."""
        return self._meet(at, own, None)

    def same(self, at: str, own: int) -> bool:
        """Whether all ranks have the same number."""
        return len(set(self.numbers(at, own))) == 1

    def exchange(self, at: str, own: bytes) -> list[bytes]:
        """The bytes of all ranks."""
        return self._bytes(own, self._meet(at, len(own), None))

    def total(self, at: str, own: Tensor) -> Tensor:
        """The sum of all ranks' tensors, added in the order of ranks: the same bits at each,
        whatever the backend. Each rank sums one slice for all."""
        if not self.same(at, own.numel()):
            raise ProtocolError(f"{at}: the ranks have tensors of different sizes")
        device = own.device if self.nccl else torch.device("cpu")
        flat = own.detach().flatten().to(device)
        length = max(1, -(-len(flat) // self.size))
        sent = flat.new_zeros(self.size * length)
        sent[: len(flat)] = flat
        received, total = torch.empty_like(sent), torch.empty_like(sent)
        with self._detecting_loss():
            dist.all_to_all_single(received.view(torch.uint8), sent.view(torch.uint8))
            first, *others = received.split(length)
            for other in others:
                first = first + other
            slices = list(total.view(torch.uint8).chunk(self.size))
            dist.all_gather(slices, first.view(torch.uint8))
        return total[: len(flat)].reshape(own.shape).to(own.device)

    def tell(self, problem: BaseException) -> None:
        """Announce that this rank has failed: the others fail at their next meeting."""
        if self.lost or problem is self._known or isinstance(problem, GeneratorExit):
            return
        self._known = problem
        try:
            self._meet("", 0, problem)
        except FedLoomError:  # another rank failed first, or all are gone
            self._known = problem

    def _meet(self, at: str, own: int, problem: BaseException | None) -> list[int]:
        place = zlib.crc32(at.encode())
        head = torch.tensor([problem is not None, place, own])
        heads = [torch.empty_like(head) for _ in range(self.size)]
        with self._detecting_loss():
            dist.all_gather(heads, head)
        failed, places, numbers = torch.stack(heads).T.tolist()
        if any(failed):
            text = b"" if problem is None else _encoded(problem, self.rank)
            self._raise(self._bytes(text, self._lengths(len(text))))
        if len(set(places)) > 1:
            text = at.encode()
            seen = {text.decode() for text in self._bytes(text, self._lengths(len(text)))}
            raise ProtocolError(f"the ranks are not in step: they are at {sorted(seen)}")
        return numbers

    def _lengths(self, own: int) -> list[int]:
        heads = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._detecting_loss():
            dist.all_gather(heads, torch.tensor([own]))
        return [int(head) for head in heads]

    def _bytes(self, own: bytes, lengths: list[int]) -> list[bytes]:
        longest = max(1, *lengths)
        sent = torch.frombuffer(bytearray(own.ljust(longest, b"\0")), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in lengths]
        with self._detecting_loss():
            dist.all_gather(received, sent)
        return [a[:n].numpy().tobytes() for a, n in zip(received, lengths, strict=True)]

    def _raise(self, problems: list[bytes]) -> None:
        """Raise the failure of the first failed rank, at all ranks."""
        self._known = _decoded(next(problem for problem in problems if problem))
        raise self._known

    @contextmanager
    def _detecting_loss(self) -> Iterator[None]:
        """Turn torch's errors about closed connections and timeouts into a LostError."""
        try:
            yield
        except RuntimeError as problem:
            self.lost = True
            why = str(problem).splitlines()[0].split("] ")[-1]
            raise LostError(
                f"rank {self.rank}: another rank was lost, or silent for {self._wait:g} s ({why})"
            ) from problem


def _encoded(problem: BaseException, rank: int) -> bytes:
    text, kind = str(problem), type(problem).__name__
    if not isinstance(problem, FedLoomError | KeyboardInterrupt):
        text = f"rank {rank}: {kind}: {text}"
    return json.dumps([kind, text]).encode()


def _decoded(encoded: bytes) -> FedLoomError:
    kind, text = json.loads(encoded)
    if kind == "KeyboardInterrupt":
        return InterruptedRun(text or "interrupted")
    error_class = getattr(errors, kind, FedLoomError)
    is_ours = isinstance(error_class, type) and issubclass(error_class, FedLoomError)
    return error_class(text) if is_ours else FedLoomError(text)
