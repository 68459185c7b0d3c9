"""What `Run.fit` does: rounds, records and callbacks, until all is done or somebody stops."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.errors import HaltedWarning, SettingError
from .callbacks import Callback, Stop
from .loop import end, play, why_it_ends
from .progress import Bar

if TYPE_CHECKING:
    from .run import Run


def go(run: Run, rounds: int, every: int | None, bar: Bar, callbacks: Sequence[Callback]) -> None:
    """Round by round; a callback's Stop ends it after the round."""
    playing = play(run.fed, run.played, rounds, run.state, run.round)
    try:
        if every is not None and not run.records:
            _record(run, bar, callbacks)
        began = time.perf_counter()
        for run.round, run.state in playing:
            run.wall += time.perf_counter() - began
            if every is not None and (run.round % every == 0 or run.round == rounds):
                _record(run, bar, callbacks)
            bar.step(run.round)
            for callback in callbacks:
                callback.on_round(run)
            began = time.perf_counter()
    except Stop as why:
        run.halted = str(why) or "a callback stopped it"
        end(playing)


def _record(run: Run, bar: Bar, callbacks: Sequence[Callback]) -> None:
    record = run.add_record()
    bar.say(record)
    for callback in callbacks:
        callback.on_record(run, record)


def halt(run: Run, every: int | None) -> None:
    """The run ended early: say why, and keep a record of how it stands."""
    run.halted = why_it_ends(run.fed, run.played, run.state, run.round)
    if run.round == 0:
        raise SettingError(f"{run.halted}: nothing would be trained")
    if every is not None and run.records[-1].round < run.round:
        run.add_record()
    if run.algorithm.halts(run.fed, run.round) is not None:  # unasked
        warnings.warn(str(run.halted), HaltedWarning, stacklevel=5)
