"""What a wheel on an index asks for, read without fetching the wheel: PEP 658 where it is served, else by ranges."""

from __future__ import annotations

import io
import zipfile
from functools import partial
from typing import TYPE_CHECKING

import httpx
from packaging.metadata import Metadata

from torchkiln import network
from torchkiln.errors import LockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.lock.index import Offer

BLOCK = 1 << 17
"""Bytes a request; the directory of a wheel's archive lies in its last few."""
LARGEST = 16 << 20
"""Bytes of metadata, and of all parts of a file that are read for it; torch needs two."""


def of(offer: Offer, environment: Mapping[str, str]) -> Metadata:
    """Core metadata of a wheel; LockError if it can't be had."""
    try:
        with network.client(environment, connections=1) as client:
            text = _beside(client, offer.url) or _inside(client, offer.url)
            return Metadata.from_email(text, validate=False)
    except (httpx.HTTPError, OSError, zipfile.BadZipFile, ValueError) as error:
        raise LockError(f"the metadata of {offer.filename} cannot be had: {error}", remedy="try again later") from error


def _beside(client: httpx.Client, url: str) -> bytes:
    """The file that the index has beside the wheel (PEP 658); nothing if it has none."""
    with client.stream("GET", f"{url}.metadata") as response:
        if response.status_code == httpx.codes.NOT_FOUND:
            return b""
        return _whole(network.bounded(response.raise_for_status().iter_bytes(), LARGEST))


def _inside(client: httpx.Client, url: str) -> bytes:
    """METADATA out of the wheel."""
    with zipfile.ZipFile(io.BufferedReader(_Ranges(client, url), BLOCK)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        with archive.open(name) as file:
            return _whole(network.bounded(iter(partial(file.read, BLOCK), b""), LARGEST))


def _whole(data: bytes | None) -> bytes:
    if data is None:
        raise OSError(f"more than {LARGEST} bytes")
    return data


class _Ranges(io.RawIOBase):
    """A file on a server, read in parts (RFC 9110, 14.2)."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self.client, self.url, self.place = client, url, 0
        self.size = int(client.head(url).raise_for_status().headers.get("Content-Length", ""))
        self.left = LARGEST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's Buffer, always a memoryview here
        end = min(self.place + len(buffer), self.size)
        if end <= self.place:
            return 0
        length = end - self.place
        self.left -= length
        if self.left < 0:
            raise OSError(f"a directory of more than {LARGEST} bytes")
        with self.client.stream("GET", self.url, headers={"Range": f"bytes={self.place}-{end - 1}"}) as response:
            part = response.status_code == httpx.codes.PARTIAL_CONTENT
            data = network.bounded(response.raise_for_status().iter_raw(), length) if part else b""
        if data is None or len(data) != length:
            raise OSError("the server sends no parts of files")
        buffer[:length] = data
        self.place = end
        return length
