"""Join deflate streams into one gzip member, without recompressing them.

A deflate stream (RFC 1951) is a list of blocks; only a bit in the last one's header ends it. So streams become one
by clearing that bit, and by an empty stored block after each, which pads to a byte. This is gzjoin of zlib's
examples, and FORMATS.md section 2 says who chokes on the alternative, one gzip member per stream.

Where the last block begins only inflating tells: zlib stops at each block if asked (Z_BLOCK). The standard library
does not expose that, so libz is called through ctypes. It only ever reads: no byte written here depends on its
version. What is not copied is encoded by `runs`, our own, or by libdeflate, which is pinned.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import re
import struct
from typing import TYPE_CHECKING, Protocol

import deflate
from isal import isal_zlib

from torchkiln.errors import HostError
from torchkiln.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Source = Callable[[memoryview], int]
    """`readinto` of a file: fills what it can and says how much; 0 at the end."""

PIECE = 1 << 20
"""Bytes that libdeflate sees at once; fixed, since the output depends on it."""
LEVEL = 6
"""libdeflate: 7 and up are much slower for under 1 %."""
FEW = 2048
"""Up to here `runs` is as small as libdeflate on tar headers, and far quicker."""
BUFFER = 1 << 18
"""Bytes read and inflated at once: fits a core's own cache."""
_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""RFC 1952: deflate, no name, no time, unknown system."""
_LAST = b"\x03\x00"
"""An empty block with fixed codes and the last-block bit."""


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


# Encoding with fixed codes (RFC 1951, 3.2.6). Bits are packed from the least significant; codes go in reversed.


def _reversed(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


_LITERAL = bytes(_reversed(0x30 + byte, 8) if byte < 144 else 0 for byte in range(256))  # noqa: PLR2004  RFC 1951
_ZEROS = re.compile(rb"\0{4,}")
_LENGTHS = (
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    13,
    15,
    17,
    19,
    23,
    27,
    31,
    35,
    43,
    51,
    59,
    67,
    83,
    99,
    115,
    131,
    163,
    195,
    227,
)
"""Smallest length of codes 257 to 284; code 285 is 258 itself."""


def _code(symbol: int) -> tuple[int, int]:
    """Bits and width of a length symbol."""
    if symbol < 280:  # noqa: PLR2004  RFC 1951
        return _reversed(symbol - 256, 7), 7
    return _reversed(0xC0 + symbol - 280, 8), 8


def _match(length: int) -> tuple[int, int]:
    """Bits and width of "repeat the previous byte `length` times": a length code and distance 1, which is 00000."""
    if length == 258:  # noqa: PLR2004  RFC 1951
        bits, width = _code(285)
        return bits, width + 5
    index = max(place for place, smallest in enumerate(_LENGTHS) if smallest <= length)
    bits, width = _code(257 + index)
    extra = 0 if index < 8 else (index - 4) // 4  # noqa: PLR2004  RFC 1951
    return bits | (length - _LENGTHS[index]) << width, width + extra + 5


def _run(length: int) -> tuple[int, int]:
    """Bits and width of a run of zero bytes: one literal, then repeats of at most 258, none shorter than 3."""
    bits, width, left = _LITERAL[0], 8, length - 1
    while left:
        step = left if left <= 258 else min(258, left - 3)  # noqa: PLR2004  RFC 1951
        more, size = _match(step)
        bits |= more << width
        width += size
        left -= step
    return bits, width


_RUNS = tuple(_run(length) if length > 3 else (0, 0) for length in range(FEW + 1))  # noqa: PLR2004  see _ZEROS


def _literals(data: bytes) -> tuple[int, int]:
    if data.isascii():
        return int.from_bytes(data.translate(_LITERAL), "little"), 8 * len(data)
    bits = width = 0
    for byte in data:
        low = byte < 144  # noqa: PLR2004  RFC 1951
        bits |= (_LITERAL[byte] if low else _reversed(0x190 + byte - 144, 9)) << width
        width += 8 if low else 9
    return bits, width


def runs(data: bytes) -> bytes:
    """A byte-aligned, unfinished deflate stream of up to FEW bytes: fixed codes, and runs of zeros as repeats.

    Meant for tar headers and padding, which are mostly zeros: 812 bytes take about 128.
    """
    bits, width, place = 0b010, 3, 0
    for zeros in _ZEROS.finditer(data):
        begin, end = zeros.span()
        for more, size in (_literals(data[place:begin]), _RUNS[end - begin]):
            bits |= more << width
            width += size
        place = end
    more, size = _literals(data[place:])
    bits |= more << width
    width += size + 7 + 3  # end of block is seven zeros; then the header of a stored block is three
    return bits.to_bytes((width + 7) // 8, "little") + b"\0\0\xff\xff"


# Inflating, block by block.

_Z_BLOCK = 5
_Z_OK = 0
_Z_BUF_ERROR = -5
_AT_BLOCK = 128


class _Stream(ctypes.Structure):
    """z_stream of zlib.h."""

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


def _libz() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libz.so.1")
    except OSError as error:
        raise HostError("zlib's shared library libz.so.1 is missing", remedy="apt-get install zlib1g") from error


class Inflater:
    """Copies deflate streams to a sink as unfinished, byte-aligned ones, and shows what is in them."""

    def __init__(self, sink: Sink) -> None:
        libz = _libz()
        self._sink = sink
        self._inflate, self._reset, self._end = libz.inflate, libz.inflateReset, libz.inflateEnd
        self._stream = _Stream()
        self._ref = ctypes.byref(self._stream)
        libz.zlibVersion.restype = ctypes.c_char_p
        if libz.inflateInit2_(self._ref, -15, libz.zlibVersion(), ctypes.sizeof(_Stream)) != _Z_OK:
            raise MemoryError("zlib could not be started")
        self._input, self._output = bytearray(BUFFER), bytearray(BUFFER)
        self._in = ctypes.addressof(ctypes.c_char.from_buffer(self._input))
        self._out = ctypes.addressof(ctypes.c_char.from_buffer(self._output))
        self._filled = 0

    def __del__(self) -> None:
        self._end(self._ref)

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
        stream, inflate, ref, plain = self._stream, self._inflate, self._ref, memoryview(self._output)
        self._reset(ref)
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


class GzipWriter:
    """Writes one gzip member from plain bytes and from deflate streams, and sums up what is inside.

    Plain bytes gather until a stream comes or a piece is full, so what is written depends on the order of the
    calls' content alone, not on how it was cut into calls.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._inflater = Inflater(sink)
        self._gathered = bytearray()
        self._sha256 = hashlib.sha256()
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

    def copy(self, source: Source, size: int, *sums: Sum) -> int:
        """Append a raw deflate stream that inflates to `size` bytes, shown to every sum; its CRC-32.

        CorruptStreamError unless it is a whole stream of that size with nothing behind it.
        """
        self._flush()
        crc = self._inflater.copy(source, size, self._sha256, *sums)
        self._crc = isal_zlib.crc32_combine(self._crc, crc, size)
        self.size += size
        return crc

    def close(self) -> Digest:
        """End the member; the digest of everything inside, which for a layer is its diff_id."""
        self._flush()
        self._sink.write(_LAST + struct.pack("<II", self._crc, self.size & 0xFFFFFFFF))
        return Digest("sha256:" + self._sha256.hexdigest())

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
        self._sha256.update(data)
        self._crc = isal_zlib.crc32(data, self._crc)
