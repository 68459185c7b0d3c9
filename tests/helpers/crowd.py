"""A crowd of strangers, as a process: `python crowd.py PORT SILENT SLOW RUBBISH`. It keeps so many
connections open, and opens those again that are closed: some say nothing, some begin TLS with a
byte a second, some send rubbish. A line is printed when all have been there."""

import contextlib
import resource
import socket
import sys
import time

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)  # as TLS begins


class Crowd:
    def __init__(self, port, count, say):
        self._port, self._say, self._here = port, say, [None] * count
        self.been = set()  # of the places: those whose connection was made, and maybe ended since

    def go_on(self):
        for place, one in enumerate(self._here):
            if one is None or self._is_over(place, one):
                one = self._here[place] = self._opened()
            with contextlib.suppress(OSError):
                one.getpeername()
                self.been.add(place)
                self._say(one)

    def _opened(self):
        one = socket.socket()
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            one.connect(("127.0.0.1", self._port))
        return one

    def _is_over(self, place, one):
        try:
            if one.recv(4096):
                return False
            self.been.add(place)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            self.been.add(place)
        except OSError:  # refused: there was no connection
            pass
        one.close()
        return True


def a_byte(one):
    one.send(HELLO[:1])


def main():
    port, *counts = map(int, sys.argv[1:])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ways = (lambda one: None, a_byte, lambda one: one.send(b"GET / HTTP/1.0\r\n"))
    crowds = [Crowd(port, count, say) for count, say in zip(counts, ways, strict=True)]
    announced = False
    while True:
        for crowd in crowds:
            crowd.go_on()
        if not announced and sum(len(crowd.been) for crowd in crowds) == sum(counts):
            print("here", flush=True)
            announced = True
        time.sleep(0.5)


if __name__ == "__main__":
    main()
