"""Joining deflate streams: what goes in comes out, as one gzip member, whatever library reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import zlib

import pytest

from torchkiln.layers import zlibs
from torchkiln.layers.deflate import PIECE, GzipWriter
from torchkiln.layers.inflate import BUFFER, CorruptStreamError, Inflater
from torchkiln.layers.runs import FEW, runs

NOISE = random.Random(7).randbytes(3 * BUFFER + 17)  # noqa: S311  not a secret
TEXT = b"".join(b"line %d of a text that compresses\n" % number for number in range(30000))


def raw(data: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """A deflate stream without header or trailer."""
    state = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    return state.compress(data) + state.flush()


def copied(stream: bytes, size: int, library: zlibs.Library | None = None) -> tuple[bytes, bytes, int]:
    """What copying a stream writes, what it shows, and the CRC it gives."""
    sink, shown = io.BytesIO(), io.BytesIO()

    class Shown:
        def update(self, data: memoryview, /) -> None:
            shown.write(data)

    crc, _ = Inflater(sink, library).copy(io.BytesIO(stream).readinto, size, Shown())
    return sink.getvalue(), shown.getvalue(), crc


@pytest.mark.parametrize("data", [b"", b"x", TEXT[:1000], TEXT, NOISE, NOISE[:BUFFER], bytes(BUFFER * 2)])
@pytest.mark.parametrize(
    ("level", "strategy"),
    [(0, 0), (1, 0), (6, 0), (9, 0), (6, zlib.Z_FIXED), (6, zlib.Z_HUFFMAN_ONLY), (6, zlib.Z_RLE)],
)
def test_a_copied_stream_goes_on(data: bytes, level: int, strategy: int) -> None:
    """After a copied stream another can follow at once: the last-block bit is gone and the copy ends on a byte."""
    written, shown, crc = copied(raw(data, level, strategy), len(data))
    assert shown == data
    assert crc == zlib.crc32(data)
    state = zlib.decompressobj(-15)
    assert state.decompress(written + raw(b"next")) == data + b"next"
    assert state.eof
    assert state.unused_data == b""


@pytest.mark.parametrize("cut", range(8))
def test_every_bit_position_of_the_end(cut: int) -> None:
    """A stream may stop at any of the eight bits of its last byte."""
    written, _, _ = copied(raw(b"\xff" * cut, 6, zlib.Z_HUFFMAN_ONLY), cut)
    written2, _, _ = copied(raw(bytes([200] * cut), 6, zlib.Z_FIXED), cut)
    for each, data in ((written, b"\xff" * cut), (written2, bytes([200] * cut))):
        assert zlib.decompressobj(-15).decompress(each + each) == data + data


def test_garbage_in_the_unused_bits_of_the_last_byte() -> None:
    """Bits behind the end of a stream are nobody's; they must not become a block header."""
    stream = bytearray(raw(b"abc", 6, zlib.Z_FIXED))  # 3 + 3 * 8 + 7 bits: six of the fifth byte are unused
    assert len(stream) == 5
    clean, _, _ = copied(bytes(stream), 3)
    stream[-1] |= 0b11111100
    assert copied(bytes(stream), 3)[0] == clean


def test_the_library_changes_no_byte() -> None:
    """zlib-ng and the system's zlib find the same blocks."""
    for data in (TEXT, NOISE, b""):
        stream = raw(data)
        assert copied(stream, len(data), zlibs.zlib_next()) == copied(stream, len(data), zlibs.zlib_system())


@pytest.mark.parametrize("library", [zlibs.zlib_next, zlibs.zlib_system])
@pytest.mark.parametrize(
    ("stream", "size", "what"),
    [
        (raw(TEXT)[:-1], len(TEXT), "cut off"),
        (raw(TEXT)[: len(raw(TEXT)) // 2], len(TEXT), "cut off"),
        (b"", 0, "cut off"),
        (raw(TEXT) + b"x", len(TEXT), "followed by other bytes"),
        (raw(TEXT), len(TEXT) - 1, "more than the stated"),
        (raw(TEXT), len(TEXT) + 1, "instead of the stated"),
        (b"\x07" + raw(TEXT), len(TEXT), "damaged"),
        (raw(bytes(1 << 26)), 1000, "more than the stated"),
    ],
)
def test_a_stream_that_lies_is_refused(library: object, stream: bytes, size: int, what: str) -> None:
    """Cut, damaged, too long, too short, or followed by something: each is an error, and a bomb stops early."""
    with pytest.raises(CorruptStreamError, match=what):
        copied(stream, size, library())  # type: ignore[operator]


def test_streams_and_plain_bytes_make_one_gzip_member() -> None:
    """Everything written is inside one member with the right CRC, size and digest."""
    sink = io.BytesIO()
    writer = GzipWriter(sink)
    plain = b""
    for data in (b"", b"a", TEXT, NOISE, bytes(700), bytes(range(256)) * 3, bytes(PIECE + 5), TEXT * 3):
        writer.write(data)
        writer.copy(io.BytesIO(raw(data)).readinto, len(data))
        plain += data * 2
    writer.close()
    assert writer.digest == "sha256:" + hashlib.sha256(plain).hexdigest()
    assert writer.size == len(plain)
    assert gzip.decompress(sink.getvalue()) == plain
    member = zlib.decompressobj(31)
    assert member.decompress(sink.getvalue()) == plain
    assert member.eof
    assert member.unused_data == b""
    assert sink.getvalue()[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


def test_how_plain_bytes_are_cut_into_writes_changes_nothing() -> None:
    """Only their order counts."""
    outputs = []
    for step in (1 << 30, PIECE, 4099):
        sink = io.BytesIO()
        writer = GzipWriter(sink)
        data = TEXT * 3
        for place in range(0, len(data), step):
            writer.write(data[place : place + step])
        writer.close()
        outputs.append(sink.getvalue())
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("length", [*range(300), 515, 516, 517, 518, 519, 520, 774, 777, 1024, FEW])
def test_runs_of_zeros_of_any_length(length: int) -> None:
    """A run splits into repeats of 3 to 258, never leaving one that is too short."""
    data = (b"a" + bytes(length) + b"z")[:FEW]
    assert zlib.decompressobj(-15).decompress(runs(data)) == data
    assert zlib.decompressobj(-15).decompress(runs(data) + b"\x03\0") == data


def test_runs_encode_a_header_small() -> None:
    """A header with padding, 812 bytes, takes less than a fifth."""
    block = (
        b"opt/venv/lib/python/site-packages/torch/nn/functional.py".ljust(100, b"\0") + b"0000664\0" * 3 + bytes(688)
    )
    assert len(runs(block)) < len(block) / 5
