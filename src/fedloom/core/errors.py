"""Everything FedLoom raises on purpose.

FedLoomError
├── InputError          what the user gave cannot be run; found before any training
│   ├── DataError       rows, ids, features or labels
│   │   └── DamagedError    a file of FedLoom's own is not as it was written
│   ├── ModelError      a module, or how modules fit together
│   └── SettingError    a number or a name in the settings
├── PlacementError      an algorithm touched a value that lives elsewhere
├── ProtocolError       a message that does not fit its kind, its place or its time
│   └── FrameError      bytes that are not a message of this run
├── NotFiniteError      NaN or infinity in what a party sent
├── LocalError          a local function failed at a party
├── LostError           a party did not answer within its deadline
├── RefusedError        a party that may not take part: its certificate, its run, its address
├── AbortedError        another party stopped the run; carries the cause
│   └── OutOfStepError  hubs are at different points of the run: they agree on one, and go on
├── NoCommonRoundError  there is no round that all hubs could go on from
├── ExistsError         an output folder that already holds something
├── WriteError          a file cannot be written: a full disk, a folder without permission
└── InterruptedRun      the user stopped the run; what was done is saved
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class HaltedWarning(UserWarning):
    """A run ended before the rounds it was asked for; a privacy budget, say, was used up."""


class DamagedWarning(UserWarning):
    """A file of FedLoom's own was damaged, and an earlier one was used."""


class FedLoomError(Exception):
    """Base of all errors raised on purpose."""


class InputError(FedLoomError, ValueError):
    """What the user gave cannot be run."""


class DataError(InputError):
    """Rows, ids, features or labels are not usable as given."""


class DamagedError(DataError):
    """A file of FedLoom's own is missing, or is not as it was written."""


class ModelError(InputError):
    """A module cannot be trained here, or the modules do not fit together."""


class SettingError(InputError):
    """A setting is out of range or unknown."""


class PlacementError(FedLoomError, TypeError):
    """A value was touched where it does not live."""


class ProtocolError(FedLoomError):
    """A message does not fit its kind, its place or its time."""


class FrameError(ProtocolError):
    """Bytes that are not a whole, unchanged message of this run, meant for us."""


class NotFiniteError(FedLoomError, ArithmeticError):
    """NaN or infinity in what a party sent."""


class LocalError(FedLoomError):
    """A local function failed at a party."""


class LostError(FedLoomError):
    """A party did not answer within its deadline."""


class RefusedError(FedLoomError):
    """A party may not take part, or was told so."""


class AbortedError(FedLoomError):
    """Another party stopped the run."""


class OutOfStepError(AbortedError):
    """A party is at another point of the run than the others: this attempt at it is over."""


class NoCommonRoundError(FedLoomError):
    """Hubs hold no round in common to go on from."""


class ExistsError(FedLoomError, FileExistsError):
    """An output folder that already holds something is never overwritten."""


class WriteError(FedLoomError, OSError):
    """A file cannot be written."""


class InterruptedRun(FedLoomError):
    """The user stopped the run."""


def reason(problem: BaseException) -> str:
    """Why something failed, without the exception's own words: parsers quote what they stumble
    over, and that is somebody's."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return type(problem).__name__


def nearest(word: str, known: Iterable[Any]) -> str:
    """'; did you mean ...?' or the list of what is known: the tail of an error message."""
    known = sorted(map(str, known))
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
