"""A server that never stops and never ends: a byte at a time, each of them within anybody's patience."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PATIENCE = httpx.Timeout(0.3)
"""Of the client in the tests: some bytes come in that time, and never a whole answer."""
PAUSE = 0.03


class Dripping(io.BufferedIOBase):
    """What is written to a connection, a byte at a time until whoever reads it has gone."""

    def __init__(self, sink: io.BufferedIOBase) -> None:
        self.sink = sink

    def write(self, data: ReadableBuffer, /) -> int:
        """Send it all."""
        for byte in bytes(data):
            self.sink.write(bytes([byte]))
            time.sleep(PAUSE)
        return len(bytes(data))
