"""A tar read entry by entry, forward only, believing nothing: what readers could take in two ways is refused.

Python's tarfile is not used on foreign layers: it takes negative sizes, follows any number of
extended headers by recursion, and reads numbers as int() does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torchkiln.errors import ImageError
from torchkiln.oci import tarheader as headers
from torchkiln.oci.tarheader import BLOCK, Entry, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BLOCK", "Content", "Entry", "Kind", "Source", "entries"]

PIECE = 1 << 18
"""Bytes asked for at once: they stay in a processor's own cache while they are inflated, hashed and written."""
_END = bytes(BLOCK)


class Source(Protocol):
    """Where the bytes come from."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, fewer only at the end."""
        ...


class Content:
    """The bytes of one file; what is not read is skipped when the next entry is asked for."""

    def __init__(self, window: _Window, size: int) -> None:
        self._window = window
        self._left = size

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer only at the end; ImageError if the archive ends before."""
        wanted = self._left if size < 0 else min(size, self._left)
        self._left -= wanted
        return self._window.exactly(wanted)

    def pieces(self) -> Iterator[memoryview]:
        """All that is left, in the portions in which it came; ImageError if the archive ends before."""
        while self._left:
            piece = self._window.some(self._left) or self._window.exactly(self._left)
            self._left -= len(piece)
            yield memoryview(piece)


class _Window:
    """A stream read in large pieces and taken in small ones."""

    __slots__ = ("_at", "_piece", "_source", "passed")

    def __init__(self, source: Source) -> None:
        self._source = source
        self._piece = b""
        self._at = 0
        self.passed = 0
        """Bytes of the pieces before this one."""

    @property
    def place(self) -> int:
        """How many bytes were taken."""
        return self.passed + self._at

    def take(self, size: int) -> bytes:
        """The next bytes, fewer only at the end."""
        end = self._at + size
        if end <= len(self._piece):
            taken = self._piece[self._at : end]
            self._at = end
            return taken
        found = []
        while size and (piece := self.some(size)):
            found.append(bytes(piece))
            size -= len(piece)
        return b"".join(found)

    def some(self, most: int) -> memoryview:
        """At least one byte and what else is at hand; none at the end."""
        if self._at == len(self._piece):
            self.passed += self._at
            self._piece, self._at = self._source.read(PIECE), 0
        taken = memoryview(self._piece)[self._at : self._at + most]
        self._at += len(taken)
        return taken

    def exactly(self, size: int) -> bytes:
        taken = self.take(size)
        if len(taken) < size:
            raise ImageError(f"not a tar archive: it ends within an entry, at byte {self.place}")
        return taken


def entries(source: Source) -> Iterator[tuple[Entry, Content | None]]:
    """Every entry with the content of a file, in order, holding one at a time.

    ImageError for anything that is no tar, or one that readers could take in two ways: entries behind a broken header
    or behind the end, numbers that are none, names with NUL, extended headers twice or without an entry, sparse files
    (which layer.md forbids), global headers that change entries (engines ignore them, tar does not), unknown types.
    """
    window = _Window(source)
    extended: dict[bytes, bytes] = {}
    while (block := window.take(BLOCK)) and block != _END:
        fields = headers.read(block, window.place - BLOCK)
        if fields.flag in headers.EXTENSIONS:
            _extend(extended, fields.flag, headers.length(fields), window)
            continue
        entry = headers.entry(fields, extended)
        extended.clear()
        content = Content(window, entry.size) if entry.kind == "file" else None
        yield entry, content
        if content is not None:
            for _ in content.pieces():
                pass
            window.exactly(-entry.size % BLOCK)
    if extended or not window.place:
        raise ImageError("not a tar archive: it ends before an entry")
    while piece := window.some(PIECE):
        if bytes(piece).strip(b"\0"):
            raise ImageError(f"a broken header at byte {window.place - len(piece)} of the tar, or more behind its end")


def _extend(extended: dict[bytes, bytes], flag: bytes, size: int, window: _Window) -> None:
    data = window.exactly(size)
    window.exactly(-size % BLOCK)
    if flag == b"g":
        headers.harmless(data)
    elif flag in extended:
        raise ImageError("two extended headers of a kind for one entry")
    else:
        extended[flag] = data
