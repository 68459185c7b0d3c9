"""Everything FedLoom raises on purpose.

FedLoomError
├── InputError          what the user gave cannot be run; found before any training
│   ├── DataError       rows, ids, features or labels
│   │   └── DamagedError    a file written by FedLoom is missing or damaged
│   ├── ModelError      a module, or how modules fit together
│   └── SettingError    a number or a name in the settings
├── PlacementError      an algorithm used a value at a party where it does not live
├── ProtocolError       a message that does not fit its kind, its place or its time
│   └── FrameError      bytes that are not a message of this run
├── DivergedError       the training loss went far above its start
│   └── NotFiniteError  NaN or infinity in what a party sent
├── LocalError          a local function failed at a party
├── LostError           a party did not answer within its deadline
├── RefusedError        a party that may not take part: its certificate, its run or its address
├── AbortedError        another party stopped the run; carries the cause
│   └── OutOfStepError  hubs are in different attempts at the run: they agree on one and go on
├── NoCommonRoundError  no round has a state at all hubs, so the run cannot be resumed
├── ExistsError         an output folder is not empty; nothing is overwritten
├── WriteError          a file cannot be written: a full disk, a folder without permission
└── InterruptedRun      the user stopped the run; what was done is saved
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class HaltedWarning(UserWarning):
    """A run ended early: its privacy budget, for example, was used up."""


class DamagedWarning(UserWarning):
    """A file written by FedLoom was damaged, and an earlier version of it was used."""


class FedLoomError(Exception):
    """Base of all errors raised on purpose."""


class InputError(FedLoomError, ValueError):
    """What the user gave cannot be run."""


class DataError(InputError):
    """Rows, ids, features or labels cannot be used."""


class DamagedError(DataError):
    """A file written by FedLoom is missing or damaged."""


class ModelError(InputError):
    """A module cannot be trained here, or the modules do not fit together."""


class SettingError(InputError):
    """A setting is out of range or unknown."""


class PlacementError(FedLoomError, TypeError):
    """An algorithm used a value at a party where it does not live."""


class ProtocolError(FedLoomError):
    """A message does not fit its kind, its place or its time."""


class FrameError(ProtocolError):
    """Bytes that are not a complete, unchanged message of this run for this party."""


class DivergedError(FedLoomError, ArithmeticError):
    """The training loss is far above its start."""


class NotFiniteError(DivergedError):
    """NaN or infinity in what a party sent."""


class LocalError(FedLoomError):
    """A local function failed at a party."""


class LostError(FedLoomError):
    """A party did not answer within its deadline."""


class RefusedError(FedLoomError):
    """A party may not take part: its certificate, its run or its address is not accepted."""


class AbortedError(FedLoomError):
    """Another party stopped the run."""


class OutOfStepError(AbortedError):
    """A party is in another attempt at the run than its peers: this attempt is over."""


class NoCommonRoundError(FedLoomError):
    """No round has a state at all hubs, so the run cannot be resumed."""


class ExistsError(FedLoomError, FileExistsError):
    """An output folder is not empty; nothing is overwritten."""


class WriteError(FedLoomError, OSError):
    """A file cannot be written."""


class InterruptedRun(FedLoomError):
    """The user stopped the run."""


def reason(problem: BaseException) -> str:
    """Why something failed, without the exception's own message: parsers quote the cell that they
    failed on, and cells are private."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return type(problem).__name__


def nearest(word: str, known: Iterable[Any]) -> str:
    """The end of an error message: '; did you mean ...?', or the list of known names."""
    known = sorted(map(str, known))
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
