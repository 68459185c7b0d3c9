"""A party's status, every second: `status.json` in its folder, read by `fedloom status`; and, where
the party file has `metrics`, the same for Prometheus over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ...core.errors import DataError, SettingError, WriteError
from ...core.files import write_text
from ...transports.links.party import PartyTransport

STATUS = "status.json"
MAX_REQUESTS = 8  # at a time, of those who ask for metrics
RECENT = 30  # rounds, for the rate


@dataclass
class Progress:
    """Rounds done, and when; and the part of this party's privacy budget that is spent."""

    rounds: int
    done: int = 0
    over: bool = False
    privacy: dict[str, Any] | None = None
    _times: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def step(self, done: int, privacy: dict[str, Any] | None = None) -> None:
        self.done, self.privacy = done, privacy
        self._times.append((done, time.monotonic()))

    @property
    def rate(self) -> float | None:
        """Rounds a second, of late."""
        if len(self._times) < 2:
            return None
        (first, began), (last, ended) = self._times[0], self._times[-1]
        return (last - first) / max(ended - began, 1e-9)


class Status:
    """Writes, and answers, until it is closed."""

    def __init__(
        self,
        folder: Path,
        name: str,
        progress: Progress,
        transport: PartyTransport,
        metrics: str | None,
    ):
        self._path, self._name = folder / STATUS, name
        self._progress, self._transport = progress, transport
        self._over = threading.Event()
        self._server = None if metrics is None else _serving(metrics, self)
        self._thread = threading.Thread(target=self._work, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(5)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def now(self) -> dict[str, Any]:
        progress, transport = self._progress, self._transport
        health = transport.health()
        present = sorted(map(str, health.present))
        return {
            "party": self._name,
            "time": time.time(),
            "round": progress.done,
            "rounds": progress.rounds,
            "rate": progress.rate,
            "over": progress.over,
            "privacy": progress.privacy,
            "present": present,
            "absent": sorted(set(map(str, transport.links)) - set(present)),
            "awaited": sorted(map(str, transport.mailbox(transport.me).awaited)),
            "refused": health.refusals,
            "strangers": health.strangers,
            "stopped": transport.cause,
            "links": {str(peer): dict(link.counts) for peer, link in transport.links.items()},
        }

    def _work(self) -> None:
        while True:
            over = self._over.wait(1.0)
            with suppress(WriteError):  # the next one may succeed; who saves a round says why not
                write_text(self._path, json.dumps(self.now(), ensure_ascii=False), durable=False)
            if over:
                return


def read_status(folder: Path) -> dict[str, Any]:
    path = folder / STATUS
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{path}: no party has written its status there") from None
    assert isinstance(status, dict)
    return status


def metrics_of(now: Mapping[str, Any]) -> Iterator[str]:
    """In the text format of Prometheus."""
    own = f'party="{now["party"]}"'
    yield from _gauge("round", "rounds done", [(own, now["round"])])
    yield from _gauge("rounds", "rounds asked for", [(own, now["rounds"])])
    yield from _gauge("rounds_per_second", "of late", [(own, now["rate"] or 0.0)])
    yield from _gauge("stopped", "1: the run was stopped", [(own, int(bool(now["stopped"])))])
    peers = [(peer, f'{own},peer="{peer}"') for peer in now["links"]]
    present, awaited = set(now["present"]), set(now["awaited"])
    yield from _gauge("connected", "1: there is a link", [(w, int(p in present)) for p, w in peers])
    yield from _gauge("awaited", "1: waited for", [(w, int(p in awaited)) for p, w in peers])
    for what in ("received", "on the wire", "refused", "repeated", "stale", "conflicting", "lost"):
        counts = [(words, now["links"][peer].get(what, 0)) for peer, words in peers]
        name = {"received": "received_bytes", "on the wire": "sent_bytes"}.get(what, what)
        yield from _gauge(f"{name}_total", f"by peer: {what}", counts, "counter")
    yield from _gauge("strangers", "connections that are not let in", [(own, now["strangers"])])
    yield from _gauge("refusals_total", "of anybody", [(own, now["refused"])], "counter")


def _gauge(
    name: str, about: str, values: list[tuple[str, float]], kind: str = "gauge"
) -> list[str]:
    lines = [f"# HELP fedloom_{name} {about}", f"# TYPE fedloom_{name} {kind}"]
    return lines + [f"fedloom_{name}{{{words}}} {value}" for words, value in values]


class _LimitedServer(ThreadingHTTPServer):
    """Answers at most MAX_REQUESTS at a time; it hangs up on others."""

    daemon_threads = True

    def __init__(self, *given: Any):
        self._places = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


def _serving(address: str, status: Status) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = ("\n".join(metrics_of(status.now())) + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    host, _, port = address.rpartition(":")
    try:
        server = _LimitedServer((host.strip("[]"), int(port)), Handler)
    except (OSError, ValueError) as problem:
        raise SettingError(f"metrics: cannot listen on {address} ({problem})") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
