"""What the clock does not tell: the memory of a program and its children, and the bytes on the way to a registry."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INTERVAL = 0.05
"""Seconds between two looks at the memory; a peak that is shorter may be missed."""


@dataclass(slots=True)
class Gauge:
    """The highest sum seen so far, and the largest process at that moment."""

    highest: int = 0
    largest: int = 0

    def tell(self, sizes: Sequence[int]) -> None:
        """What the processes have now."""
        if sum(sizes) > self.highest:
            self.highest, self.largest = sum(sizes), max(sizes)


@contextmanager
def memory(*roots: int) -> Iterator[Gauge]:
    """Watch the memory of processes and all below them, a page that n of them share counted as 1/n for each."""
    gauge, ended = Gauge(), threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL):
            gauge.tell([resident(process) for root in roots for process in below(root)])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield gauge
    finally:
        ended.set()
        thread.join()


def below(root: int) -> list[int]:
    """A process and its descendants, as far as they are there now."""
    found = [root]
    with suppress(OSError):
        for task in Path(f"/proc/{root}/task").iterdir():
            found += [one for child in (task / "children").read_text().split() for one in below(int(child))]
    return found


def resident(process: int) -> int:
    """Proportional set size in bytes (proc(5), smaps_rollup); nothing for one that ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


@dataclass(slots=True)
class Way:
    """A port that leads to another one and counts what passes."""

    address: str
    _counts: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """In both directions."""
        return sum(self._counts)

    def count(self, size: int) -> None:
        """Something passed; appending is safe between threads."""
        self._counts.append(size)


@contextmanager
def counted(address: str) -> Iterator[Way]:
    """A way to a service on loopback."""
    host, _, port = address.rpartition(":")

    class Handler(BaseRequestHandler):
        """One connection, both ways."""

        def handle(self) -> None:
            """Until both sides have closed."""
            with socket.create_connection((host, int(port))) as there:
                back = threading.Thread(target=_pump, args=(there, self.request, way))
                back.start()
                _pump(self.request, there, way)
                back.join()

    class Server(ThreadingTCPServer):
        """Ends without waiting for connections that a client keeps open."""

        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        way = Way(address=f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield way
        finally:
            server.shutdown()
            thread.join()


def _pump(source: socket.socket, sink: socket.socket, way: Way) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 18):
            sink.sendall(data)
            way.count(len(data))
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
