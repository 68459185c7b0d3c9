"""A party's logs: names of parties, kinds, counts and times; no id and no number of a row.

audit.jsonl   who joined, left or was refused and why, how it ended, bytes by link and kind; entries
              are only added, and on disk before the party goes on
log.jsonl     the same, and every round: for programs that follow a run
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..core.files import Appending
from ..core.topology import Party, title

AUDIT, LOG = "audit.jsonl", "log.jsonl"


@dataclass
class Log:
    """Of one party, in its folder; `say` is for its terminal."""

    folder: Path
    me: Party
    say: Callable[[str], None]
    _audit: Appending = field(init=False)
    _log: Appending = field(init=False)

    def __post_init__(self) -> None:
        self._audit, self._log = Appending(self.folder / AUDIT), Appending(self.folder / LOG)

    def note(self, event: str, **facts: Any) -> None:
        """An event for the audit."""
        line = self._line(event, facts)
        self._audit.add(line)
        self._log.add(line, durable=False)

    def tell(self, event: str, said: str, **facts: Any) -> None:
        """A frequent event: for the log and the terminal only."""
        self._log.add(self._line(event, facts), durable=False)
        self.say(f"{title(self.me)}: {said}")

    def _line(self, event: str, facts: dict[str, Any]) -> str:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "party": str(self.me), "event": event, **facts}
        return json.dumps(line, ensure_ascii=False)
