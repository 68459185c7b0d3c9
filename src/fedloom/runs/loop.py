"""The loop over rounds, in one place: for a run in this process and for a party's program."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import Any

from ..algorithms.contract import Algorithm
from ..fabric.engine import Engine, RunIsOver
from .stopping import Validated


def why_it_ends(fed: Engine, algorithm: Algorithm, state: Any, round: int) -> str | None:
    """Why the run must end before this round, if it must: the same at every party that decides."""
    if isinstance(algorithm, Validated) and (why := algorithm.stops(fed, state)) is not None:
        return why
    return algorithm.halts(fed, round)


Playing = Generator[tuple[int, Any], bool | None, None]


def end(playing: Playing) -> None:
    """No further round, as if all were done."""
    if getgeneratorstate(playing) == GEN_SUSPENDED:
        with suppress(StopIteration):
            playing.send(True)


def play(
    fed: Engine, algorithm: Algorithm, rounds: int, state: Any = None, first: int = 0
) -> Playing:
    """The loop, in one place: yields (rounds done, state) after every round, until the algorithm
    halts, or `end` is called. A party that stops before the end, for whatever reason, tells the
    others."""
    try:
        fed.warm_up(algorithm.warm_up)
        if state is None:
            state = algorithm.start(fed)
        for round in range(first, rounds):
            if fed.decides and why_it_ends(fed, algorithm, state, round) is not None:
                break
            fed.begin(round)
            try:
                state = algorithm.round(fed, state, algorithm.draw(fed))
            except RunIsOver:
                break
            fed.check_state(state)
            fed.end()
            if (yield round + 1, state):
                break
        fed.finish()
    except (Exception, GeneratorExit) as problem:
        fed.fail(problem)
        raise
