"""Joins deflate streams and plain bytes into one gzip member, without recompressing the streams.

Each stream is copied unfinished and padded to a byte (`inflate`), so that the next one goes on where it stops, and
one CRC stands at the end. This is gzjoin of zlib's examples; README.md here says who chokes on the alternative, one
gzip member per stream. Plain bytes are encoded by `runs`, our own, or by libdeflate, which is
pinned and gives the same bytes on every processor.
"""

from __future__ import annotations

import hashlib
import io
import struct
from typing import TYPE_CHECKING

import deflate
from isal import isal_zlib

from torchkiln.errors import HostError
from torchkiln.layers.inflate import Inflater, replay
from torchkiln.layers.runs import FEW, runs
from torchkiln.oci.digest import Digest

if TYPE_CHECKING:
    from torchkiln.layers.inflate import Boundary, Sink, Source
    from torchkiln.layers.sums import Sum

PIECE = 1 << 20
"""Bytes that libdeflate sees at once; fixed, since the output depends on it."""
LEVEL = 6
"""libdeflate: 7 and up are much slower for under 1 %."""
ENCODER = "0.9.0"
"""The package whose libdeflate writes layers: with another one the golden layers tell whether their FORMATs go up."""
_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""RFC 1952: deflate, no name, no time, unknown system."""
_LAST = b"\x03\x00"
"""An empty block with fixed codes and the last-block bit."""


class GzipWriter:
    """Writes one gzip member from plain bytes and from deflate streams, and sums up what is inside.

    Plain bytes gather until a stream comes or a piece is full, so what is written depends on the order of the
    calls' content alone, not on how it was cut into calls.
    """

    def __init__(self, sink: Sink, *, hashed: bool = True) -> None:
        """`hashed` False leaves out the digest of what is inside, for whoever knows it. HostError without `ENCODER`."""
        if deflate.__version__ != ENCODER:
            remedy = "./inv uses the one in requirements.lock"
            raise HostError(f"deflate {deflate.__version__} might write other bytes than {ENCODER}", remedy=remedy)
        self._sink = sink
        self._inflater = Inflater(sink)
        self._gathered = bytearray()
        self._sha256 = hashlib.sha256()
        self._hashed = hashed
        self._crc = 0
        self.size = 0
        """Plain bytes so far."""
        sink.write(_HEADER)

    def write(self, data: bytes | memoryview) -> int:
        """Append plain bytes."""
        self._gathered += data
        self.size += len(data)
        while len(self._gathered) >= PIECE:
            self._encode(bytes(memoryview(self._gathered)[:PIECE]))
            del self._gathered[:PIECE]
        return len(data)

    def copy(self, source: Source, size: int, *sums: Sum, packed: int = 0) -> tuple[int, Boundary]:
        """Append a raw deflate stream that inflates to `size` bytes, shown to every sum; its CRC-32 and boundary.

        `packed` is its length, as far as is known. CorruptStreamError unless it is a whole stream of that size with
        nothing behind it.
        """
        self._flush()
        seen = (self._sha256, *sums) if self._hashed else sums
        crc, boundary = self._inflater.copy(source, size, *seen, packed=packed)
        self._append(crc, size)
        return crc, boundary

    def replay(self, source: Source, packed: int, boundary: Boundary, *, crc: int, size: int) -> None:
        """Append a raw deflate stream of which all is known; only without `hashed`, since nothing is inflated."""
        if self._hashed:
            raise ValueError("what is not inflated cannot be hashed")
        self._flush()
        replay(self._sink, source, packed, boundary)
        self._append(crc, size)

    def close(self) -> None:
        """End the member."""
        self._flush()
        self._sink.write(_LAST + struct.pack("<II", self._crc, self.size & 0xFFFFFFFF))

    @property
    def digest(self) -> Digest:
        """The digest of everything inside so far, which for a layer is its diff_id."""
        if not self._hashed:
            raise ValueError("what is inside was not hashed")
        return Digest("sha256:" + self._sha256.hexdigest())

    def _append(self, crc: int, size: int) -> None:
        self._crc = isal_zlib.crc32_combine(self._crc, crc, size)
        self.size += size

    def _flush(self) -> None:
        if self._gathered:
            self._encode(bytes(self._gathered))
            self._gathered.clear()

    def _encode(self, data: bytes) -> None:
        if len(data) > FEW:
            compressed = io.BytesIO(deflate.deflate_compress(data, LEVEL))
            self._inflater.copy(compressed.readinto, len(data))
        else:
            self._sink.write(runs(data))
        if self._hashed:
            self._sha256.update(data)
        self._crc = isal_zlib.crc32(data, self._crc)
