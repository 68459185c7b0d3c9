"""Ranks: the processes of one owner that torchrun starts, and how they stay in step.

All ranks run the same program and meet at the same places. At every meeting each says where it is
and whether it has a problem: a problem of one rank is raised by all, and whoever is somewhere else
is found out. A rank that is gone (its links are cut) or silent for too long is a LostError.
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
import torch.distributed.nn  # its functions would hold a group for ever that is there before them
from torch import Tensor

from ...core import errors
from ...core.errors import FedLoomError, InterruptedRun, LostError, ProtocolError

WAIT = 600.0  # seconds a rank waits for another, unless told otherwise
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def several() -> bool:
    """Whether this process is one of several that torchrun started."""
    return all(name in os.environ for name in NEEDED) and int(os.environ["WORLD_SIZE"]) > 1


def speaks() -> bool:
    """Whether this process is the one that tells the user what all of them know."""
    return not several() or os.environ["RANK"] == "0"


def restarted() -> bool:
    """Whether torchrun started everyone again, after one was lost."""
    return several() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def joined(wait: float = WAIT) -> Iterator[Ranks | None]:
    """This process among the others; None where there are none. What ends one, ends all."""
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
        if not ranks.lost:  # where one is, leaving could wait for it
            dist.destroy_process_group()  # ends its threads: one that needs Python later aborts


class Ranks:
    """All processes, seen from one of them. `wait`: seconds it waits for another."""

    def __init__(self, wait: float = WAIT):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._local = int(os.environ.get("LOCAL_RANK", self.rank))
        on_device_of = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self._wait, self.lost = wait, False
        self._known: BaseException | None = None  # the last problem that everyone knows
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self.nccl = gpus >= on_device_of and dist.is_nccl_available()  # a GPU for each
        self._gpu = self._local % gpus if gpus else 0
        if gpus:
            torch.cuda.set_device(self._gpu)
        with self._listening():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if self.nccl else "gloo", timeout=timedelta(seconds=wait)
            )

    def __str__(self) -> str:
        return f"{self.size} ranks ({'NCCL' if self.nccl else 'gloo'})"

    def device(self, name: str) -> str:
        """`cuda` without a number is this rank's own GPU."""
        return f"cuda:{self._gpu}" if name == "cuda" else name

    # Meetings: `at` names the place, which must be the same for all

    def numbers(self, at: str, mine: int = 0) -> list[int]:
        """Everyone's number."""
        return self._meet(at, mine, None)

    def same(self, at: str, mine: int) -> bool:
        """Whether everyone has the same number."""
        return len(set(self.numbers(at, mine))) == 1

    def exchange(self, at: str, mine: bytes) -> list[bytes]:
        """Everyone's bytes."""
        return self._bytes(mine, self._meet(at, len(mine), None))

    def total(self, at: str, mine: Tensor) -> Tensor:
        """The sum over all ranks, of tensors of one shape, added in the order of the ranks: the
        same bits at each, whatever carries them. A rank adds up one slice for all."""
        if not self.same(at, mine.numel()):
            raise ProtocolError(f"{at}: the ranks have tensors of different sizes")
        carried = mine.device if self.nccl else torch.device("cpu")
        flat = mine.detach().flatten().to(carried)
        length = max(1, -(-len(flat) // self.size))
        sent = flat.new_zeros(self.size * length)
        sent[: len(flat)] = flat
        came, whole = torch.empty_like(sent), torch.empty_like(sent)
        with self._listening():
            dist.all_to_all_single(came.view(torch.uint8), sent.view(torch.uint8))
            first, *others = came.split(length)
            for other in others:
                first = first + other
            slices = list(whole.view(torch.uint8).chunk(self.size))
            dist.all_gather(slices, first.view(torch.uint8))
        return whole[: len(flat)].reshape(mine.shape).to(mine.device)

    def tell(self, problem: BaseException) -> None:
        """This rank cannot go on: the others, at their next meeting, cannot either."""
        if self.lost or problem is self._known or isinstance(problem, GeneratorExit):
            return
        self._known = problem
        try:
            self._meet("", 0, problem)
        except FedLoomError:  # somebody else's was first, or nobody is there any more
            self._known = problem

    def _meet(self, at: str, mine: int, problem: BaseException | None) -> list[int]:
        place = zlib.crc32(at.encode())
        head = torch.tensor([problem is not None, place, mine])
        heads = [torch.empty_like(head) for _ in range(self.size)]
        with self._listening():
            dist.all_gather(heads, head)
        failed, places, numbers = torch.stack(heads).T.tolist()
        if any(failed):
            told = b"" if problem is None else _written(problem, self.rank)
            self._raise(self._bytes(told, self._lengths(len(told))))
        if len(set(places)) > 1:
            told = at.encode()
            seen = {text.decode() for text in self._bytes(told, self._lengths(len(told)))}
            raise ProtocolError(f"the ranks are not in step: they are at {sorted(seen)}")
        return numbers

    def _lengths(self, mine: int) -> list[int]:
        heads = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._listening():
            dist.all_gather(heads, torch.tensor([mine]))
        return [int(head) for head in heads]

    def _bytes(self, mine: bytes, lengths: list[int]) -> list[bytes]:
        longest = max(1, *lengths)
        sent = torch.frombuffer(bytearray(mine.ljust(longest, b"\0")), dtype=torch.uint8)
        came = [torch.empty_like(sent) for _ in lengths]
        with self._listening():
            dist.all_gather(came, sent)
        return [a[:n].numpy().tobytes() for a, n in zip(came, lengths, strict=True)]

    def _raise(self, told: list[bytes]) -> None:
        """The first rank's problem, at all."""
        self._known = _read(next(one for one in told if one))
        raise self._known

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """What torch says of links that are cut, and of waits that are over."""
        try:
            yield
        except RuntimeError as problem:
            self.lost = True
            why = str(problem).splitlines()[0].split("] ")[-1]
            raise LostError(
                f"rank {self.rank}: another rank was lost, or silent for {self._wait:g} s ({why})"
            ) from problem


def _written(problem: BaseException, rank: int) -> bytes:
    text, kind = str(problem), type(problem).__name__
    if not isinstance(problem, FedLoomError | KeyboardInterrupt):
        text = f"rank {rank}: {kind}: {text}"
    return json.dumps([kind, text]).encode()


def _read(told: bytes) -> FedLoomError:
    kind, text = json.loads(told)
    if kind == "KeyboardInterrupt":
        return InterruptedRun(text or "interrupted")
    found = getattr(errors, kind, FedLoomError)
    is_ours = isinstance(found, type) and issubclass(found, FedLoomError)
    return found(text) if is_ours else FedLoomError(text)
