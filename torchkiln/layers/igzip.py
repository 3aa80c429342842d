"""ISA-L's inflate (igzip), called directly: the fastest there is, and it can be stopped, put back and fed by bits.

It does not pause at blocks. But its state says whether the block being read is the last one; so whoever feeds it
piece by piece sees in which piece that block begins, and by going back, halving and at last feeding single bits, at
which bit. The state is laid out as in igzip_lib.h; `load` tries it out, and gives None where it is another.
"""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isal import igzip_lib, isal_zlib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HISTORY = 1 << 15
"""How far a deflate stream refers back (RFC 1951)."""
ROOMS = 4
"""Buffers that pieces come in by turns."""
_DONE = (4, 5)
"""Block states once the stream has ended: ISAL_BLOCK_INPUT_DONE, ISAL_BLOCK_FINISH."""


class DamagedError(ValueError):
    """What was fed is no deflate stream."""


class _State(ctypes.Structure):
    """struct inflate_state of igzip_lib.h; what is not looked at is left as bytes."""

    _fields_ = (
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_uint32),
        ("total_out", ctypes.c_uint32),
        ("next_in", ctypes.c_void_p),
        ("read_in", ctypes.c_uint64),
        ("avail_in", ctypes.c_uint32),
        ("read_in_length", ctypes.c_int32),
        ("codes", ctypes.c_uint8 * (4096 * 4 + 1264 * 2 + 1024 * 2 + 80 * 2)),
        ("block_state", ctypes.c_uint32),
        ("dict_length", ctypes.c_uint32),
        ("bfinal", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * (44 + 328 + 2 * HISTORY + 288 + 1024)),  # with room to spare
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What has come out so far."""

    size: int
    crc: int
    history: bytes
    """The last 32 KiB, or all."""


class Igzip:
    """One raw deflate stream after the other, each fed in pieces."""

    def __init__(self, library: ctypes.CDLL, room: int) -> None:
        self._begin: Callable[[Any], None] = library.isal_inflate_init
        self._inflate: Callable[[Any], int] = library.isal_inflate
        self._state, self._kept = _State(), _State()
        self._ref = ctypes.byref(self._state)
        self._rooms, self._scratch = [bytearray(room) for _ in range(ROOMS)], bytearray(room)
        self._turn = 0
        self.begin()

    def begin(self) -> None:
        """Expect a new stream."""
        self._begin(self._ref)
        self.seen = Seen(size=0, crc=0, history=b"")
        self.keep()

    def keep(self) -> None:
        """Remember this moment."""
        ctypes.pointer(self._kept)[0] = self._state
        self._kept_seen = self.seen

    def go_back(self) -> None:
        """To the moment that was kept."""
        ctypes.pointer(self._state)[0] = self._kept
        self.seen = self._kept_seen

    @property
    def last(self) -> bool:
        """Whether the last block has begun, as far as can be told from what was fed."""
        return bool(self._state.bfinal)

    def feed(self, address: int, count: int) -> Iterator[memoryview]:
        """Take bytes that lie in memory, and show in pieces all that comes out; DamagedError if it is not deflate.

        A piece stays as it is until as many have come as there are ROOMS.
        """
        full = True
        while full:
            full, shown = self._inflate_into(self._rooms[self._turn], address, count)
            address, count = self._state.next_in or 0, self._state.avail_in
            if shown:
                self._turn = (self._turn + 1) % ROOMS  # not for nothing: only pieces count
                yield shown

    def _inflate_into(self, room: bytearray, address: int, count: int) -> tuple[bool, memoryview]:
        """What fits into a buffer, and whether it is full."""
        state = self._state
        state.next_in, state.avail_in = address, count
        state.next_out, state.avail_out = ctypes.addressof(ctypes.c_char.from_buffer(room)), len(room)
        if self._inflate(self._ref) < 0:
            raise DamagedError("not deflate")
        shown = memoryview(room)[: len(room) - state.avail_out]
        self._see(shown)
        return not state.avail_out, shown

    def _see(self, shown: memoryview) -> None:
        history = bytes(shown[-HISTORY:])
        if len(history) < HISTORY:
            history = (self.seen.history + history)[-HISTORY:]
        size, crc = self.seen.size + len(shown), isal_zlib.crc32(shown, self.seen.crc)
        self.seen = Seen(size=size, crc=crc, history=history)

    def locate(self, data: bytearray, address: int, count: int) -> int:
        """At which bit of these bytes, which were just fed after `keep`, the last block begins; `seen` is up to there.

        What follows can be fed no more.
        """
        self.go_back()
        low, high = 0, count
        while high - low > 1:
            middle = (low + high) // 2
            self._run(address + low, middle - low)
            if self.last:
                high = middle
                self.go_back()
            else:
                low = middle
                self.keep()
        return low * 8 + self._bits_before_last(data[low], address)

    def _run(self, address: int, count: int) -> None:
        """Feed without showing anything, since what was shown may still be looked at."""
        full, _ = self._inflate_into(self._scratch, address, count)
        while full:
            full, _ = self._inflate_into(self._scratch, self._state.next_in or 0, self._state.avail_in)

    def _bits_before_last(self, byte: int, address: int) -> int:
        """Feed a byte bit by bit; how many came before the bit that says "last block". Nothing is read there."""
        for bit in range(8):
            self._state.read_in |= (byte >> bit & 1) << self._state.read_in_length
            self._state.read_in_length += 1
            self._run(address, 0)
            if self.last:
                return bit
        raise DamagedError("the last block begins nowhere")


def load(room: int) -> Igzip | None:
    """ISA-L with room for so many bytes at once; None if its functions or its state are not what they were."""
    try:
        igzip = Igzip(ctypes.CDLL(igzip_lib.__file__), room)
        return igzip if _works(igzip) else None
    except (AttributeError, OSError, DamagedError):
        return None


def _works(igzip: Igzip) -> bool:
    """Find the last block of a stream whose blocks are known: it begins behind the empty one of a flush."""
    state = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = bytes(range(256)) * 8
    before = state.compress(data) + state.flush(zlib.Z_SYNC_FLUSH)
    stream = bytearray(before + state.compress(data) + state.flush())
    with memoryview(stream):
        address = ctypes.addressof(ctypes.c_char.from_buffer(stream))
        plain = b"".join(bytes(piece) for piece in igzip.feed(address, len(stream)))
        done = igzip._state.block_state in _DONE and igzip.last  # noqa: SLF001  the layout is what is tried out
        found = igzip.locate(stream, address, len(stream))
    igzip.begin()
    return plain == data * 2 and done and found == len(before) * 8
