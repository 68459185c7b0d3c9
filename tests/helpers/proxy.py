"""A relay in front of a port that can cut connections, or swallow packets without a word; also as
a firewall does with connections that have been quiet for too long."""

import contextlib
import selectors
import socket
import threading
import time


class Proxy:
    """`idle`: seconds after which a quiet connection is forgotten; what comes then is swallowed
    or, with `resets`, answered by a reset."""

    def __init__(self, port, idle=float("inf"), resets=False):
        self._idle, self._resets, self._last = idle, resets, {}
        self._to, self._pairs, self.swallowing, self._open = port, {}, False, True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def cut(self):
        """Every connection is reset."""
        for one in list(self._pairs):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._open = False
        self._thread.join(5)

    def _work(self):
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        while self._open:
            for key, _ in selector.select(0.05):
                if key.fileobj is self._listener:
                    near, _ = self._listener.accept()
                    try:
                        far = socket.create_connection(("127.0.0.1", self._to))
                    except OSError:  # whoever was there has left
                        near.close()
                        continue
                    self._pairs |= {near: far, far: near}
                    self._last[near] = self._last[far] = time.monotonic()
                    selector.register(near, selectors.EVENT_READ)
                    selector.register(far, selectors.EVENT_READ)
                elif key.fileobj in self._pairs:
                    self._pass_on(selector, key.fileobj)
        for one in [self._listener, *self._pairs]:
            one.close()

    def _is_forgotten(self, near, far):
        if self.swallowing or time.monotonic() - self._last[near] > self._idle:
            return True  # for ever: the time stays
        self._last[near] = self._last[far] = time.monotonic()
        return False

    def _pass_on(self, selector, near):
        far = self._pairs[near]
        try:
            data = near.recv(1 << 16)
            if data and not self._is_forgotten(near, far):
                far.sendall(data)
            elif data and self._resets:
                data = b""
        except OSError:
            data = b""
        if not data:
            for one in (near, far):
                selector.unregister(one)
                self._pairs.pop(one).close()
