"""The tar inside a layer blob: decompressed and hashed while it is read, never larger than stated."""

from __future__ import annotations

import hashlib
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from isal import igzip, isal_zlib

from torchkiln.errors import ImageError
from torchkiln.oci import tar as tars
from torchkiln.oci import zstd
from torchkiln.oci.digest import CHUNK, Digest
from torchkiln.oci.image import LAYER_TYPE, PLAIN_TYPE, ZSTD_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from typing import BinaryIO

    from torchkiln.oci.store import Store

GZIP = b"\x1f\x8b"
WHITEOUT = ".wh."
"""Begins the name of an entry that hides the rest of its name in lower layers (layer.md, Whiteouts)."""
OPAQUE = ".wh..wh..opq"
"""The name of an entry that hides all that lower layers have in its folder (layer.md, Opaque Whiteout)."""
DEEPEST = 200
"""Folders below folders: more than any image has, and little enough to keep each one open."""
LONGEST_NAME = 255
LONGEST_PATH = 4094
"""Bytes, as in limits.h (NAME_MAX, and PATH_MAX less the first slash and the last NUL): no program could open more."""
SHORT = 63
"""Characters that are never too many bytes."""
MOST_NAMES = 512 << 20
"""Bytes of names and targets of links in one layer, and a hundred for each member: readers keep them in memory."""
DAMAGE: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, isal_zlib.error, zstd.ZstdError)  # type: ignore[assignment]
"""What decompressors raise for bytes they cannot read; isal's stubs call its class an instance."""


class TarReader:
    """A forward-only file; ImageError as soon as more than `limit` bytes come, 0 for no limit."""

    def __init__(self, source: BinaryIO, *, limit: int = 0) -> None:
        self._source = source
        self._limit = limit
        self.size = 0

    def read(self, size: int) -> bytes:
        """The next bytes, fewer only at the end."""
        try:
            piece = self._source.read(size)
        except DAMAGE as error:
            raise ImageError(f"the compressed layer is damaged: {error}") from error
        self.size += len(piece)
        if self._limit and self.size > self._limit:
            raise ImageError(f"the layer unpacks to more than the stated {self._limit} bytes")
        return piece

    def members(self) -> Iterator[tuple[tars.Entry, tars.Content | None]]:
        """Every entry with the content of a regular file, in order, holding one at a time.

        ImageError for what is no tar or can be read in two ways (`tar.entries`), and for more names than a layer has.
        """
        names = 0
        for entry, data in tars.entries(self):
            names += len(entry.name) + len(entry.target) + 100
            if names > MOST_NAMES:
                raise ImageError("more files, or longer names, than any layer has")
            yield entry, data


class TarStream(TarReader):
    """One that hashes what passes."""

    def __init__(self, source: BinaryIO, *, limit: int = 0) -> None:
        super().__init__(source, limit=limit)
        self._sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next bytes, fewer only at the end."""
        piece = super().read(size)
        self._sha256.update(piece)
        return piece

    def finish(self) -> Digest:
        """Read what is left and give the digest of everything: the diff_id."""
        while self.read(CHUNK):
            pass
        return Digest("sha256:" + self._sha256.hexdigest())


@contextmanager
def tar_of(store: Store, digest: Digest, *, limit: int = 0) -> Iterator[TarStream]:
    """The tar of a layer of the store, which errors about it name; StoreError if the blob is missing.

    `limit` is in bytes, 0 for none.
    """
    try:
        with store.open(digest) as blob, tar_in(cast("BufferedReader", blob), limit=limit) as tar:
            yield tar
    except ImageError as error:
        if error.where:
            raise
        raise ImageError(error.what, where=f"layer {digest}", remedy=error.remedy) from error


@contextmanager
def tar_in(blob: BufferedReader, *, limit: int = 0) -> Iterator[TarStream]:
    """The tar in a blob, as `plain` gives it."""
    with plain(blob) as stream:
        yield TarStream(stream, limit=limit)


@contextmanager
def plain(blob: BufferedReader) -> Iterator[BinaryIO]:
    """The bytes in a blob, which is read in the form that it has."""
    found = form(blob)
    if found == PLAIN_TYPE:
        yield cast("BinaryIO", blob)
    elif found == ZSTD_TYPE:
        with zstd.reading(blob) as frames:
            yield cast("BinaryIO", frames)
    else:
        with igzip.IGzipFile(fileobj=blob, mode="rb") as stream:  # type: ignore[no-untyped-call]
            yield cast("BinaryIO", stream)


def form(blob: BufferedReader) -> str:
    """The media type of the layer that begins here, told by its first bytes as engines do; nothing is read."""
    start = blob.peek(len(zstd.FRAME))[: len(zstd.FRAME)]
    if start.startswith(GZIP):
        return LAYER_TYPE
    return ZSTD_TYPE if zstd.begins(start) else PLAIN_TYPE


def parts(name: str) -> tuple[str, ...]:
    """A tar name as path components below the root; ImageError if it climbs out, is too deep or too long for Linux."""
    found = tuple(part for part in name.split("/") if part not in {"", "."})
    if ".." in found or len(found) > DEEPEST:
        raise ImageError(f"a path climbs out of the layer or is too deep: {name[:200]!r}")
    if len(name) > SHORT and (
        len(_bytes("/".join(found))) > LONGEST_PATH or any(len(_bytes(part)) > LONGEST_NAME for part in found)
    ):
        raise ImageError(f"a path is too long: {name[:200]!r}")
    return found


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def measure(store: Store, digest: Digest) -> tuple[Digest, int]:
    """The diff_id and size in bytes of the tar in a blob."""
    with tar_of(store, digest) as tar:
        return tar.finish(), tar.size
