"""One address → one verified file: resumed, retried, hashed while it streams.

The file grows under a partial name and is whole and verified when `download` returns; the caller renames it.
Too few bytes (FetchError) differ from wrong bytes (HashMismatchError): few are kept for the next try, wrong ones
are deleted. A server that hangs up is asked again as long as it gives something.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import httpx

from torchkiln import room
from torchkiln.errors import FetchError, HashMismatchError, HostError
from torchkiln.lock.lockfile import BIGGEST

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torchkiln.lock.lockfile import Pin

TRIES = 5
"""In a row that gained too little; the next failure is the answer."""
GAIN = 1 << 20
"""Bytes; a try that brought as many is no failure."""
LONGEST_WAIT = 60
"""Seconds, whatever Retry-After asks for."""
REMEDY = "check the network, HTTPS_PROXY and SSL_CERT_FILE, then run it again"
ELSEWHERE = "put the file into a folder named by TORCHKILN_FIND_LINKS, or choose another version: ./inv lock"
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
PARTIAL, NOT_SATISFIABLE = 206, 416


class StoppedError(Exception):
    """Another download failed, or the user pressed Ctrl-C."""


class _AgainError(Exception):
    """A try failed in a way that another one may cure."""

    def __init__(self, why: str, *, wait: float = 0) -> None:
        super().__init__(why)
        self.wait = wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a download uses of the world."""

    client: httpx.Client
    stopped: Callable[[], bool]
    """Whether to give up, asked between pieces."""
    advance: Callable[[int], None]
    """Told how many bytes came; negative when some were thrown away."""
    sleep: Callable[[float], None] = time.sleep


class Growing:
    """A partial file, hashed as far as it goes."""

    def __init__(self, path: Path, total: int | None) -> None:
        self.path = path
        self.total = total
        """Bytes of the whole file, by the lock, else by the server as soon as it says so."""
        self.file = path.open("a+b")
        self.state = hashlib.sha256()
        self.size = 0
        self.etag = ""
        self.file.seek(0)
        while piece := self.file.read(1 << 20):
            self.state.update(piece)
            self.size += len(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if not self.size:
            self.path.unlink(missing_ok=True)

    def append(self, piece: bytes) -> None:
        """More bytes, written and hashed."""
        self.file.write(piece)
        self.state.update(piece)
        self.size += len(piece)

    def restart(self) -> int:
        """Throw everything away; how much that was."""
        lost = self.size
        self.file.truncate(0)
        self.state, self.size, self.etag = hashlib.sha256(), 0, ""
        return lost

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        return f"{self.size}" if self.total is None else f"{self.size} of {self.total}"

    def settle(self) -> str:
        """On disk for good; the sha256 in hex."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.state.hexdigest()


def download(pin: Pin, url: str, partial: Path, around: Surroundings) -> None:
    """Fill `partial` with exactly the pinned bytes, going on with what it holds.

    Raises FetchError, HashMismatchError, HostError when the disk is full, StoppedError when asked to stop.
    """
    try:
        with Growing(partial, pin.size) as growing:
            around.advance(growing.size)
            _fill(pin, url, growing, around)
    except HashMismatchError:
        partial.unlink(missing_ok=True)
        raise
    except OSError as error:
        raise _disk(error, pin, partial) from error


def _fill(pin: Pin, url: str, growing: Growing, around: Surroundings) -> None:
    fruitless = 0
    while True:
        before = growing.size
        try:
            return _try(pin, url, growing, around)
        except _AgainError as error:
            fruitless = 1 if growing.size - before >= GAIN else fruitless + 1
            if fruitless >= TRIES:
                goes_on = ": it goes on where it stopped" if growing.size else ""
                raise FetchError(f"{pin.filename}: {error}", where=place(url), remedy=REMEDY + goes_on) from error
            around.sleep(error.wait or 0.5 * 2 ** (fruitless - 1) * random.uniform(0.8, 1.2))  # noqa: S311  no secret


def _try(pin: Pin, url: str, growing: Growing, around: Surroundings) -> None:
    resumed = growing.size > 0
    if growing.total is None or growing.size < growing.total:
        _receive(pin, url, growing, around)
    found = growing.settle()
    if found == pin.sha256:
        return
    around.advance(-growing.restart())
    if resumed:
        raise _AgainError("what was continued does not belong together")
    raise HashMismatchError(
        f"{pin.filename} has other bytes than the lock pins",
        where=f"{place(url)}: expected {pin.sha256}, received {found}",
        remedy="the bad copy is deleted; find out which is right before trusting either",
    )


def _receive(pin: Pin, url: str, growing: Growing, around: Surroundings) -> None:
    """Append what is missing, from where the file ends if the server can (RFC 9110, 14.2 Range and 13.1.5 If-Range)."""
    headers = {"Range": f"bytes={growing.size}-"} if growing.size else {}
    if growing.size and growing.etag:
        headers["If-Range"] = growing.etag
    try:
        with around.client.stream("GET", url, headers=headers) as response:
            start = _start(response, pin, growing)
            if start != growing.size:  # from the beginning, then: the server sends all of it, or is asked anew
                around.advance(-growing.restart())
            if start != growing.size:
                raise _AgainError("the server has no such part of the file")
            growing.etag = _strong(response.headers.get("ETag", ""))
            for piece in response.iter_raw():
                if around.stopped():
                    raise StoppedError
                growing.append(piece)
                around.advance(len(piece))
                if growing.size > (BIGGEST if growing.total is None else growing.total):
                    raise _other_size(pin, f"more than {growing.total or BIGGEST}", growing.total, url)
    except httpx.TooManyRedirects as error:
        raise FetchError(f"{pin.filename}: the server leads in circles", where=place(url), remedy=ELSEWHERE) from error
    except httpx.TransportError as error:
        raise _AgainError(f"{_words(error)} after {growing.progress} bytes") from error
    if growing.total is not None and growing.size < growing.total:
        raise _AgainError(f"the connection ended after {growing.progress} bytes")


def _start(response: httpx.Response, pin: Pin, growing: Growing) -> int:
    """The offset at which the body begins, -1 if there is none; an error for an answer that is no part of the file."""
    status = response.status_code
    if status in RETRIED:
        after = response.headers.get("Retry-After", "")
        wait = min(int(after[:9]), LONGEST_WAIT) if after.isdecimal() else 0
        raise _AgainError(f"the server answers {status} {response.reason_phrase}", wait=wait)
    if status == NOT_SATISFIABLE:
        return -1
    if status not in {200, PARTIAL}:
        raise FetchError(
            f"{pin.filename}: the server answers {status} {response.reason_phrase}",
            where=place(str(response.url)),
            remedy=ELSEWHERE,
        )
    return _offset(response, pin, growing)


def _offset(response: httpx.Response, pin: Pin, growing: Growing) -> int:
    if response.status_code == PARTIAL:
        found = re.fullmatch(r"bytes (\d{1,15})-\d+/(\d{1,15}|\*)", response.headers.get("Content-Range", ""))
        if found is None:
            raise _AgainError("the server sends a part without saying which")
        total, offset = found[2], int(found[1])
    else:
        total, offset = response.headers.get("Content-Length", ""), 0
    if growing.total is None:
        growing.total = int(total) if total.isdecimal() else None
        if growing.total and growing.total > BIGGEST:
            raise _other_size(pin, total, None, str(response.url))
    elif total.isdecimal() and int(total) != growing.total:
        raise _other_size(pin, total, growing.total, str(response.url))
    return offset


def _other_size(pin: Pin, size: str, expected: int | None, url: str) -> HashMismatchError:
    whose = "the lock pins" if pin.size else "the server said"
    return HashMismatchError(
        f"{pin.filename} has {size} bytes, {'as no wheel has' if expected is None else f'{whose} {expected}'}",
        where=place(url),
        remedy="the server has another file under that name; find out which is right before trusting either",
    )


def _strong(etag: str) -> str:
    """If-Range takes strong validators only (RFC 9110, 13.1.5)."""
    return "" if etag.startswith("W/") else etag


def _words(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.ConnectError):
        return f"no connection ({error}; is there a network?)"
    if isinstance(error, httpx.TimeoutException):
        return "the server sends nothing, or next to nothing,"
    return "the connection broke"


def place(url: str) -> str:
    """An address for messages: host and path, without user, password or query."""
    parts = urlsplit(url)
    return f"{parts.hostname or ''}{parts.path}"


def _disk(error: OSError, pin: Pin, partial: Path) -> HostError:
    if error.errno in room.FULL:
        here = partial.stat().st_size if partial.exists() else 0
        return room.full(partial.parent, f"{pin.filename} comes in", max(0, (pin.size or 0) - here))
    return HostError(f"{pin.filename} cannot be written: {error.strerror}", where=str(partial))
