"""What a wheel on an index asks for, read without fetching the wheel: PEP 658 where it is served, else by ranges."""

from __future__ import annotations

import io
import zipfile
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


def of(offer: Offer, environment: Mapping[str, str]) -> Metadata:
    """Core metadata of a wheel; LockError if it can't be had."""
    try:
        with network.client(environment, connections=1) as client:
            answer = client.get(f"{offer.url}.metadata")
            if answer.status_code != httpx.codes.NOT_FOUND:
                return Metadata.from_email(answer.raise_for_status().content, validate=False)
            with zipfile.ZipFile(io.BufferedReader(_Ranges(client, offer.url), BLOCK)) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
                return Metadata.from_email(archive.read(name), validate=False)
    except (httpx.HTTPError, OSError, zipfile.BadZipFile, ValueError) as error:
        why = network.redact(str(error))
        raise LockError(f"the metadata of {offer.filename} cannot be had: {why}", remedy="try again later") from error


class _Ranges(io.RawIOBase):
    """A file on a server, read in parts (RFC 9110, 14.2)."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self.client, self.url, self.place = client, url, 0
        self.size = int(client.head(url).raise_for_status().headers["Content-Length"])

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
        answer = self.client.get(self.url, headers={"Range": f"bytes={self.place}-{end - 1}"}).raise_for_status()
        if answer.status_code != httpx.codes.PARTIAL_CONTENT or len(answer.content) != end - self.place:
            raise OSError("the server sends no parts of files")
        buffer[: end - self.place] = answer.content
        self.place = end
        return len(answer.content)
