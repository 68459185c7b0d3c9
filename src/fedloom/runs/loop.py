"""The loop over rounds, in one place: for a run in this process and for a party's program."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..algorithms.contract import Algorithm
from ..fabric.engine import Engine, RunIsOver


def play(
    fed: Engine, algorithm: Algorithm, rounds: int, state: Any = None, first: int = 0
) -> Generator[tuple[int, Any], None, None]:
    """The loop, in one place: yields (rounds done, state) after every round, until the algorithm
    halts. A party that stops before the end, for whatever reason, tells the others."""
    try:
        fed.warm_up(algorithm.warm_up)
        if state is None:
            state = algorithm.start(fed)
        for round in range(first, rounds):
            if fed.decides and algorithm.halts(fed, round) is not None:
                break
            fed.begin(round)
            try:
                state = algorithm.round(fed, state, algorithm.draw(fed))
            except RunIsOver:
                break
            fed.check_state(state)
            fed.end()
            yield round + 1, state
        fed.finish()
    except (Exception, GeneratorExit) as problem:
        fed.fail(problem)
        raise
