"""Digests: parse, compute, print (OCI image-spec, descriptor.md "Digests"). Only sha256 is used."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NewType

from torchkiln.errors import ImageError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

Digest = NewType("Digest", str)
"""`sha256:` and 64 lower-case hex digits."""

_FORM = re.compile(r"sha256:[0-9a-f]{64}")
CHUNK = 1 << 20


def parse(text: str) -> Digest:
    """Check the form; ImageError for anything else, since a digest becomes a file name."""
    if not _FORM.fullmatch(text):
        raise ImageError(f"not a sha256 digest: {text[:100]!r}")
    return Digest(text)


def encoded(digest: Digest) -> str:
    """The hex part alone."""
    return digest.removeprefix("sha256:")


def of_bytes(data: bytes) -> Digest:
    """The digest of data in memory."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def of_stream(stream: BinaryIO) -> tuple[Digest, int]:
    """The digest and size in bytes of what is left of a stream, read in pieces of 1 MiB."""
    state = hashlib.sha256()
    size = 0
    while piece := stream.read(CHUNK):
        state.update(piece)
        size += len(piece)
    return Digest("sha256:" + state.hexdigest()), size


class Tally:
    """A write-only file that counts and hashes what passes, and keeps nothing."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take note of bytes."""
        self._sha256.update(data)
        self.size += len(data)
        return len(data)

    @property
    def digest(self) -> Digest:
        """Of what was written so far."""
        return Digest("sha256:" + self._sha256.hexdigest())


def of_file(path: Path) -> tuple[Digest, int]:
    """The digest and size in bytes of a file."""
    with path.open("rb") as stream:
        return of_stream(stream)
