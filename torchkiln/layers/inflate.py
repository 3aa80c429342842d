"""Copies a deflate stream (RFC 1951) so that it does not end, and shows what is in it on the way.

A stream is a list of blocks; a bit in the last one's header ends it. Only inflating tells where that header is,
and at which bit the stream stops. zlib pauses at every block if asked (Z_BLOCK), which no Python module exposes;
so its C functions are called directly: zlib-ng's, which the package zlib-ng holds, else the system's, which take
half as long again. They only read: no byte that is written depends on which one it was, or on its version.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from isal import isal_zlib
from zlib_ng import zlib_ng

from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Source = Callable[[memoryview], int]
    """`readinto` of a file: fills what it can and says how much; 0 at the end."""

BUFFER = 1 << 18
"""Bytes read and inflated at once: fits a core's own cache."""


class CorruptStreamError(ValueError):
    """A deflate stream is damaged, cut, too long, or followed by other bytes."""


class Sink(Protocol):
    """Where compressed bytes go."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Append bytes."""


class Sum(Protocol):
    """Something that sees the plain bytes pass, such as a hash of hashlib."""

    def update(self, data: memoryview, /) -> None:
        """See more bytes."""


_Z_BLOCK = 5
_Z_OK = 0
_Z_BUF_ERROR = -5
_AT_BLOCK = 128


class _Stream(ctypes.Structure):
    """z_stream of zlib.h; zlib-ng's is laid out alike where a long has 64 bits."""

    _fields_ = (
        ("next_in", ctypes.c_void_p),
        ("avail_in", ctypes.c_uint),
        ("total_in", ctypes.c_ulong),
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_uint),
        ("total_out", ctypes.c_ulong),
        ("msg", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("zalloc", ctypes.c_void_p),
        ("zfree", ctypes.c_void_p),
        ("opaque", ctypes.c_void_p),
        ("data_type", ctypes.c_int),
        ("adler", ctypes.c_ulong),
        ("reserved", ctypes.c_ulong),
    )


@dataclass(frozen=True, slots=True)
class _Library:
    """The four functions of zlib's interface that are used."""

    begin: Callable[[Any], int]
    inflate: Callable[[Any, int], int]
    reset: Callable[[Any], int]
    end: Callable[[Any], int]


_RAW = -15
"""windowBits of zlib.h: no header or trailer, 32 KiB of history."""


def zlib_next() -> _Library:
    """zlib-ng; AttributeError if the package was built without exporting it."""
    library = ctypes.CDLL(zlib_ng.__file__)
    return _Library(
        begin=lambda stream: int(library.zng_inflateInit2(stream, _RAW)),
        inflate=library.zng_inflate,
        reset=library.zng_inflateReset,
        end=library.zng_inflateEnd,
    )


def zlib_system() -> _Library:
    """The system's zlib; HostError if there is none."""
    try:
        library = ctypes.CDLL("libz.so.1")
    except OSError as error:
        raise HostError("zlib's shared library libz.so.1 is missing", remedy="apt-get install zlib1g") from error
    library.zlibVersion.restype = ctypes.c_char_p
    return _Library(
        begin=lambda stream: int(library.inflateInit2_(stream, _RAW, library.zlibVersion(), ctypes.sizeof(_Stream))),
        inflate=library.inflate,
        reset=library.inflateReset,
        end=library.inflateEnd,
    )


def fastest() -> _Library:
    """zlib-ng if it can be reached."""
    try:
        return zlib_next()
    except (AttributeError, OSError):
        return zlib_system()


class Inflater:
    """Copies deflate streams to a sink as unfinished, byte-aligned ones, and shows what is in them."""

    def __init__(self, sink: Sink, library: _Library | None = None) -> None:
        self._sink = sink
        self._library = library or fastest()
        self._stream = _Stream()
        self._ref = ctypes.byref(self._stream)
        if self._library.begin(self._ref) != _Z_OK:
            raise MemoryError("zlib could not be started")
        self._input, self._output = bytearray(BUFFER), bytearray(BUFFER)
        self._in = ctypes.addressof(ctypes.c_char.from_buffer(self._input))
        self._out = ctypes.addressof(ctypes.c_char.from_buffer(self._output))
        self._filled = 0

    def __del__(self) -> None:
        self._library.end(self._ref)

    def copy(self, source: Source, size: int, *sums: Sum) -> int:
        """Copy one raw stream that inflates to `size` bytes, shown to every sum in pieces; its CRC-32.

        CorruptStreamError unless it is a whole stream of that size with nothing behind it.
        """
        crc = total = 0
        for seen in self._blocks(source):
            total += len(seen)
            if total > size:
                raise CorruptStreamError(f"inflates to more than the stated {size} bytes")
            for each in sums:
                each.update(seen)
            crc = isal_zlib.crc32(seen, crc)
        if total != size:
            raise CorruptStreamError(f"inflates to {total} bytes instead of the stated {size}")
        return crc

    def _blocks(self, source: Source) -> Iterator[memoryview]:
        """Go from block to block; clear the last-block bit where it is set, and write all that was read."""
        stream, inflate, ref, plain = self._stream, self._library.inflate, self._ref, memoryview(self._output)
        self._library.reset(ref)
        self._filled = stream.avail_in = unused = 0
        stream.next_out, stream.avail_out = self._out, BUFFER
        last = False
        while not last:
            if not stream.avail_in and not unused:
                self._refill(source)
            last = self._clear_last_bit((self._filled - stream.avail_in) * 8 - unused)
            at_block = 0
            while not at_block:
                result = inflate(ref, _Z_BLOCK)
                if result not in (_Z_OK, _Z_BUF_ERROR):
                    raise CorruptStreamError(f"is damaged: {(stream.msg or b'not deflate').decode()}")
                at_block = stream.data_type & _AT_BLOCK
                if not stream.avail_out:
                    yield plain
                    stream.next_out, stream.avail_out = self._out, BUFFER
                elif not stream.avail_in and not at_block:
                    self._refill(source)
            unused = stream.data_type & 7
        yield plain[: BUFFER - stream.avail_out]
        self._finish(source, unused)

    def _refill(self, source: Source) -> None:
        """Write what was consumed but for its last byte, which may hold bits of the next block's header."""
        given, kept = memoryview(self._input), min(self._filled, 1)
        if kept:
            self._sink.write(given[: self._filled - 1])
            given[0] = given[self._filled - 1]
        read = source(given[kept:])
        if not read:
            raise CorruptStreamError("is cut off")
        self._filled = kept + read
        self._stream.next_in, self._stream.avail_in = self._in + kept, read

    def _clear_last_bit(self, position: int) -> bool:
        """Whether the block whose header begins at that bit of the input is the last; it no longer says so."""
        place, mask = position >> 3, 1 << (position & 7)
        last = bool(self._input[place] & mask)
        self._input[place] &= ~mask
        return last

    def _finish(self, source: Source, unused: int) -> None:
        """Write the rest, and an empty stored block: three zero bits, zeros up to a byte, length 0, complement."""
        if self._stream.avail_in or source(memoryview(bytearray(1))):
            raise CorruptStreamError("is followed by other bytes")
        self._input[self._filled - 1] &= 0xFF >> unused
        self._sink.write(memoryview(self._input)[: self._filled])
        self._sink.write(b"\0\0\xff\xff" if unused >= 3 else b"\0\0\0\xff\xff")  # noqa: PLR2004  header bits
