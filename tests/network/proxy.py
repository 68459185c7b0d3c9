"""A relay in front of a port that can cut connections, or swallow packets without a word."""

import contextlib
import selectors
import socket
import threading


class Proxy:
    def __init__(self, port):
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
                    selector.register(near, selectors.EVENT_READ)
                    selector.register(far, selectors.EVENT_READ)
                elif key.fileobj in self._pairs:
                    self._pass_on(selector, key.fileobj)
        for one in [self._listener, *self._pairs]:
            one.close()

    def _pass_on(self, selector, near):
        far = self._pairs[near]
        try:
            data = near.recv(1 << 16)
            if data and not self.swallowing:
                far.sendall(data)
        except OSError:
            data = b""
        if not data:
            for one in (near, far):
                selector.unregister(one)
                self._pairs.pop(one).close()
