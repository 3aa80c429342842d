"""Encodes what is mostly zeros, tar headers and padding, as deflate with fixed codes (RFC 1951, section 3.2.6).

An encoder of our own, because its bytes go into every layer: no library's next release may change them. Literals
are translated all at once, and a run of zeros is one literal and "repeat the last byte"; so a header with padding,
812 bytes, takes about 150 in 5 µs. Bits are packed from the least significant up, and codes go in reversed.
"""

from __future__ import annotations

import re

FEW = 2048
"""Bytes that one call takes at most; up to here it is as small as libdeflate on tar headers, and far quicker."""


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

    Meant for tar headers and padding, which are mostly zeros: 812 bytes take about 150.
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
