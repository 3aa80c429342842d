"""A way to a registry on this machine on which all bytes are counted, both ways."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Wire:
    """What has passed."""

    host: str
    moved: int = 0
    """Bytes of requests and answers, with their headers."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        """Carry what comes until its end."""
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.moved += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side has gone: so does the other
            source.close()
            sink.close()

    def carry(self, client: socket.socket, port: int) -> None:
        """One connection."""
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=self.pass_on, args=(server, client))
            back.start()
            self.pass_on(client, server)
            back.join()


@contextmanager
def counted(host: str) -> Iterator[Wire]:
    """Another name for the registry at `127.0.0.1:PORT`."""
    port = int(host.rpartition(":")[2])
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = Wire(host=f"127.0.0.1:{listener.getsockname()[1]}")

        def accept() -> None:
            while True:
                try:
                    client = listener.accept()[0]
                except OSError:
                    return
                threads.append(threading.Thread(target=wire.carry, args=(client, port)))
                threads[-1].start()

        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield wire
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
