"""What a party writes about itself: names of parties, kinds, counts and times; no id, no number of
a row.

audit.jsonl   who joined, left or was refused and why, how it ended, bytes by link and kind; only
              ever added to, and on disk when the next thing happens
log.jsonl     the same, and every round: for programs that follow a run
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..federation.topology import Party, title
from ..files import append_line, telling

AUDIT, LOG = "audit.jsonl", "log.jsonl"


@dataclass(frozen=True)
class Log:
    """Of one party, in its folder; `say` is for its terminal."""

    folder: Path
    me: Party
    say: Callable[[str], None]

    def note(self, event: str, **facts: Any) -> None:
        """Something that somebody may have to answer for."""
        line = self._line(event, facts)
        append_line(self.folder / AUDIT, line)
        self._follow(line)

    def tell(self, event: str, said: str, **facts: Any) -> None:
        """Something that happens all the time."""
        self._follow(self._line(event, facts))
        self.say(f"{title(self.me)}: {said}")

    def _line(self, event: str, facts: dict[str, Any]) -> str:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        told = {"time": now, "party": str(self.me), "event": event, **facts}
        return json.dumps(told, ensure_ascii=False)

    def _follow(self, line: str) -> None:
        path = self.folder / LOG
        with telling(path), path.open("ab") as file:
            file.write(line.encode() + b"\n")
