"""Connections over which bytes must come at a pace: no server holds anybody by sending one now and then.

A read timeout alone says how long nothing may come. Here it says how long next to nothing may: whoever gave less than
`FLOOR` bytes, or a whole answer, in all that time has fallen silent, be it amid headers, a small document or a blob.
Of what is sent the kernel sees to it: it takes nothing more before a good part of its buffer has left.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import httpcore

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

FLOOR = 64 << 10
"""Bytes: about a thousand a second for a minute's timeout, less than which dnf, too, takes for a stalled download."""


class Stream(httpcore.NetworkStream):
    """A connection; only the time in which it was waited for counts."""

    def __init__(self, inner: httpcore.NetworkStream, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner, self._clock = inner, clock
        self._waited, self._came = 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What comes next; ReadTimeout if too little has come since something was sent, or since the last FLOOR."""
        left = None if timeout is None else timeout - self._waited
        if left is not None and left <= 0:
            raise self._late(timeout)
        began = self._clock()
        try:
            data = self._inner.read(max_bytes, left)
        except httpcore.ReadTimeout as error:
            raise self._late(timeout) from error
        self._waited += self._clock() - began
        self._came += len(data)
        if self._came >= FLOOR:
            self._waited, self._came = 0.0, 0
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send; an answer is expected from now on."""
        self._waited, self._came = 0.0, 0
        self._inner.write(buffer, timeout)

    def _late(self, timeout: float | None) -> httpcore.ReadTimeout:
        return httpcore.ReadTimeout(f"only {self._came} bytes came in {timeout or 0:g} seconds")

    def close(self) -> None:
        """End it."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        """The same, encrypted."""
        return Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._clock)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401  httpcore's own type
        """As the connection itself."""
        return self._inner.get_extra_info(info)


class Backend(httpcore.SyncBackend):
    """Makes such connections."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> Stream:
        """As httpcore does; ConnectError also for a name that can't even be looked up."""
        try:
            return Stream(super().connect_tcp(host, port, timeout, local_address, socket_options))
        except (UnicodeError, OverflowError) as error:
            raise httpcore.ConnectError(f"no host has such a name: {host[:100]!r}") from error
