"""Copies a deflate stream (RFC 1951) so that it does not end, and shows what is in it on the way.

A stream is a list of blocks; a bit in the last one's header ends it. Only inflating tells where that header is, and
at which bit the stream stops: its boundary. zlib finds it by going from block to block. Through a large stream ISA-L
goes ahead, a quarter faster, up to the last block, and zlib takes over there, which proves the place as well. Where
the boundary is remembered from an earlier time, nothing needs to be inflated.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from isal import isal_zlib

from torchkiln.layers import igzip
from torchkiln.layers.sums import shown_to
from torchkiln.layers.zlibs import AT_BLOCK, Z_BLOCK, Z_BUF_ERROR, Z_OK, Library, Stream, fastest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchkiln.layers.sums import Sum

    Source = Callable[[memoryview], int]
    """`readinto` of a file: fills what it can and says how much; 0 at the end."""

BUFFER = 1 << 19
"""Bytes read and inflated at once: fits a core's own cache; with half of it, handing pieces to a thread is felt."""
LARGE = 1 << 22
"""Compressed bytes from which on it pays to let ISA-L go ahead; to find the last block costs about 2 ms."""


class CorruptStreamError(ValueError):
    """A deflate stream is damaged, cut, too long, or followed by other bytes."""


class Sink(Protocol):
    """Where compressed bytes go."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Append bytes."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """All that must be known of a stream to write it unfinished and padded."""

    last: int
    """The bit at which the last block's header begins."""
    unused: int
    """Bits of the last byte that are behind the end."""


class Inflater:
    """Copies deflate streams to a sink as unfinished, byte-aligned ones, and shows what is in them."""

    def __init__(self, sink: Sink, library: Library | None = None, *, room: int = BUFFER, large: int = LARGE) -> None:
        """`room` and `large` change speed alone, not what is written."""
        self._sink = sink
        self._library = library or fastest()
        self._large = large
        self._igzip: igzip.Igzip | None = None
        self._stream = Stream()
        self._ref = ctypes.byref(self._stream)
        if self._library.begin(self._ref) != Z_OK:
            raise MemoryError("zlib could not be started")
        self._room = room
        self._input, self._output = bytearray(room), bytearray(room)
        self._in = ctypes.addressof(ctypes.c_char.from_buffer(self._input))
        self._out = ctypes.addressof(ctypes.c_char.from_buffer(self._output))
        self._filled = self._written = self._crc = 0
        self._boundary = Boundary(0, 0)

    def __del__(self) -> None:
        self._library.end(self._ref)

    def copy(self, source: Source, size: int, *sums: Sum, packed: int = 0) -> tuple[int, Boundary]:
        """Copy one raw stream that inflates to `size` bytes, shown to every sum in pieces; its CRC-32 and boundary.

        `packed` bytes are compressed, as far as is known: it decides how, not what. CorruptStreamError unless it is
        a whole stream of that size with nothing behind it.
        """
        total = 0
        ahead = self._goes_ahead() if packed >= self._large else None
        with shown_to(sums, unseen=igzip.ROOMS - 1 if ahead else 0) as show:
            for seen in self._pieces(source, ahead):
                total += len(seen)
                if total > size:
                    raise CorruptStreamError(f"inflates to more than the stated {size} bytes")
                show(seen)
        if total != size:
            raise CorruptStreamError(f"inflates to {total} bytes instead of the stated {size}")
        return self._crc, self._boundary

    def _goes_ahead(self) -> igzip.Igzip | None:
        self._igzip = self._igzip or igzip.load(self._room)
        return self._igzip

    def _pieces(self, source: Source, ahead: igzip.Igzip | None) -> Iterator[memoryview]:
        self._library.reset(self._ref)
        self._filled = self._stream.avail_in = self._written = self._crc = 0
        return self._ahead(source, ahead) if ahead else self._blocks(source)

    def _ahead(self, source: Source, ahead: igzip.Igzip) -> Iterator[memoryview]:
        """Let ISA-L inflate up to the end of the piece in which the last block begins; from that block on zlib does.

        So zlib shows again what ISA-L has shown of the last block: it must be the same, and is left out.
        """
        ahead.begin()
        try:
            while not ahead.last:
                self._write(self._filled)
                self._filled = source(memoryview(self._input))
                if not self._filled:
                    raise CorruptStreamError("is cut off")
                ahead.keep()
                yield from ahead.feed(self._in, self._filled)
            shown = ahead.seen
            begin = ahead.locate(self._input, self._in, self._filled)
        except igzip.DamagedError as error:
            raise CorruptStreamError(f"is damaged: {error}") from error
        self._take_over(begin, ahead.seen.history)
        self._crc = ahead.seen.crc
        again, crc = shown.size - ahead.seen.size, ahead.seen.crc
        for piece in self._blocks(source, unused=-begin % 8):
            common, again = piece[:again], max(again - len(piece), 0)
            crc = isal_zlib.crc32(common, crc)
            yield memoryview(bytes(piece[len(common) :]))  # zlib has one buffer only
        if again or crc != shown.crc:
            raise CorruptStreamError("is read differently by two libraries")

    def _take_over(self, begin: int, history: bytes) -> None:
        """Have zlib go on at a bit of the input, after that history."""
        stream, place, unused = self._stream, (begin + 7) // 8, -begin % 8
        stream.next_in, stream.avail_in = self._in + place, self._filled - place
        self._library.dictionary(self._ref, history, len(history))
        if unused:
            self._library.prime(self._ref, unused, self._input[place - 1] >> (8 - unused))

    def _blocks(self, source: Source, unused: int = 0) -> Iterator[memoryview]:
        """Go from block to block; clear the last-block bit where it is set, and write all that was read."""
        stream, inflate, ref, plain = self._stream, self._library.inflate, self._ref, memoryview(self._output)
        stream.next_out, stream.avail_out = self._out, self._room
        last = False
        while not last:
            if not stream.avail_in and not unused:
                self._refill(source)
            last = self._clear_last_bit((self._filled - stream.avail_in) * 8 - unused)
            at_block = 0
            while not at_block:
                result = inflate(ref, Z_BLOCK)
                if result not in (Z_OK, Z_BUF_ERROR):
                    raise CorruptStreamError(f"is damaged: {(stream.msg or b'not deflate').decode()}")
                at_block = stream.data_type & AT_BLOCK
                if not stream.avail_out:
                    self._crc = isal_zlib.crc32(plain, self._crc)
                    yield plain
                    stream.next_out, stream.avail_out = self._out, self._room
                elif not stream.avail_in and not at_block:
                    self._refill(source)
            unused = stream.data_type & 7
        rest = plain[: self._room - stream.avail_out]
        self._crc = isal_zlib.crc32(rest, self._crc)
        yield rest
        self._finish(source, unused)

    def _write(self, count: int) -> None:
        """Write so many bytes of the input."""
        if count:
            self._sink.write(memoryview(self._input)[:count])
            self._written += count

    def _refill(self, source: Source) -> None:
        """Write what was consumed but for its last byte, which may hold bits of the next block's header."""
        given, kept = memoryview(self._input), min(self._filled, 1)
        if kept:
            self._write(self._filled - 1)
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
        self._boundary = Boundary(self._written * 8 + position, 0)
        return last

    def _finish(self, source: Source, unused: int) -> None:
        """Write the rest and the padding."""
        if self._stream.avail_in or source(memoryview(bytearray(1))):
            raise CorruptStreamError("is followed by other bytes")
        self._boundary = Boundary(self._boundary.last, unused)
        self._input[self._filled - 1] &= 0xFF >> unused
        self._write(self._filled)
        self._sink.write(_padding(unused))


def _padding(unused: int) -> bytes:
    """An empty stored block: three zero bits, zeros up to a byte, length 0, complement."""
    return b"\0\0\xff\xff" if unused >= 3 else b"\0\0\0\xff\xff"  # noqa: PLR2004  header bits


def replay(sink: Sink, source: Source, packed: int, boundary: Boundary) -> None:
    """Copy a stream of `packed` bytes as `Inflater.copy` would, without looking into it.

    CorruptStreamError if it is shorter, or has no last-block bit there: then it is another stream. A boundary that
    is wrong in any other way gives wrong bytes: hold their digest against what it must be.
    """
    buffer = memoryview(bytearray(min(packed, BUFFER)))
    place, written = boundary.last >> 3, 0
    while written < packed:
        count = source(buffer)
        if not count:
            raise CorruptStreamError("is cut off")
        if 0 <= place - written < count:
            mask = 1 << (boundary.last & 7)
            if not buffer[place - written] & mask:
                raise CorruptStreamError("has no last block where it was remembered")
            buffer[place - written] &= ~mask
        written += count
        if written == packed:
            buffer[count - 1] &= 0xFF >> boundary.unused
        sink.write(buffer[:count])
    sink.write(_padding(boundary.unused))
