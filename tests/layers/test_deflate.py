"""Joining deflate streams: what goes in comes out, as one gzip member, whatever library reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import zlib

import pytest
from zlib_ng import zlib_ng

from torchkiln.errors import HostError
from torchkiln.layers import igzip, zlibs
from torchkiln.layers.deflate import PIECE, GzipWriter
from torchkiln.layers.inflate import BUFFER, Boundary, CorruptStreamError, Inflater, replay
from torchkiln.layers.runs import FEW, runs

NOISE = random.Random(7).randbytes(3 * BUFFER + 17)  # noqa: S311  not a secret
TEXT = b"".join(b"line %d of a text that compresses\n" % number for number in range(30000))


def raw(data: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """A deflate stream without header or trailer."""
    state = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    return state.compress(data) + state.flush()


AHEAD = 0
"""ISA-L goes ahead through streams of any size."""
ZLIB = 1 << 60
"""zlib does all."""


def copied(
    stream: bytes, size: int, library: zlibs.Library | None = None, *, large: int = AHEAD, room: int = BUFFER
) -> tuple[bytes, bytes, int, Boundary]:
    """What copying a stream writes, what it shows, the CRC it gives, and the boundary it finds."""
    sink, shown = io.BytesIO(), io.BytesIO()

    class Shown:
        def update(self, data: memoryview, /) -> None:
            shown.write(data)

    inflater = Inflater(sink, library, large=large, room=room)
    crc, boundary = inflater.copy(io.BytesIO(stream).readinto, size, Shown(), packed=len(stream))
    return sink.getvalue(), shown.getvalue(), crc, boundary


def replayed(stream: bytes, boundary: Boundary) -> bytes:
    """What copying a stream with a boundary writes."""
    sink = io.BytesIO()
    replay(sink, io.BytesIO(stream).readinto, len(stream), boundary)
    return sink.getvalue()


def mixed() -> tuple[bytes, bytes]:
    """A short stream with every kind of block and flush, many of them empty, and what is in it."""
    stream = data = b""
    chance = random.Random(3)  # noqa: S311  not a secret
    for strategy in (0, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, 0):
        state = zlib.compressobj(6, zlib.DEFLATED, -15, 9, strategy)
        for flush in (zlib.Z_PARTIAL_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH):
            piece = bytes(chance.choices(b"abcdefg \n", k=60)) + chance.randbytes(3)
            stream += state.compress(piece) + state.flush(flush)
            data += piece
    state = zlib.compressobj(6, zlib.DEFLATED, -15)
    return stream + state.compress(data) + state.flush(), data + data


@pytest.mark.parametrize("data", [b"", b"x", TEXT[:1000], TEXT, NOISE, NOISE[:BUFFER], bytes(BUFFER * 2)])
@pytest.mark.parametrize(
    ("level", "strategy"),
    [(0, 0), (1, 0), (6, 0), (9, 0), (6, zlib.Z_FIXED), (6, zlib.Z_HUFFMAN_ONLY), (6, zlib.Z_RLE)],
)
@pytest.mark.parametrize("large", [AHEAD, ZLIB])
def test_a_copied_stream_goes_on(data: bytes, level: int, strategy: int, large: int) -> None:
    """After a copied stream another can follow at once: the last-block bit is gone and the copy ends on a byte."""
    stream = raw(data, level, strategy)
    written, shown, crc, boundary = copied(stream, len(data), large=large)
    assert replayed(stream, boundary) == written
    assert shown == data
    assert crc == zlib.crc32(data)
    state = zlib.decompressobj(-15)
    assert state.decompress(written + raw(b"next")) == data + b"next"
    assert state.eof
    assert state.unused_data == b""


@pytest.mark.parametrize("cut", range(8))
def test_every_bit_position_of_the_end(cut: int) -> None:
    """A stream may stop at any of the eight bits of its last byte."""
    written, *_ = copied(raw(b"\xff" * cut, 6, zlib.Z_HUFFMAN_ONLY), cut)
    written2, *_ = copied(raw(bytes([200] * cut), 6, zlib.Z_FIXED), cut)
    for each, data in ((written, b"\xff" * cut), (written2, bytes([200] * cut))):
        assert zlib.decompressobj(-15).decompress(each + each) == data + data


def test_garbage_in_the_unused_bits_of_the_last_byte() -> None:
    """Bits behind the end of a stream are nobody's; they must not become a block header."""
    stream = bytearray(raw(b"abc", 6, zlib.Z_FIXED))  # 3 + 3 * 8 + 7 bits: six of the fifth byte are unused
    assert len(stream) == 5
    clean, *_ = copied(bytes(stream), 3)
    stream[-1] |= 0b11111100
    for large in (AHEAD, ZLIB):
        written, _, _, boundary = copied(bytes(stream), 3, large=large)
        assert written == clean == replayed(bytes(stream), boundary)


def test_the_library_changes_no_byte() -> None:
    """zlib-ng and the system's zlib find the same blocks, and ISA-L leads both to the last one."""
    for data in (TEXT, NOISE, b""):
        stream = raw(data)
        found = [
            copied(stream, len(data), library, large=large)
            for library in (zlibs.zlib_next(), zlibs.zlib_system())
            for large in (AHEAD, ZLIB)
        ]
        assert all(one == found[0] for one in found)


@pytest.mark.parametrize("large", [AHEAD, ZLIB])
def test_every_chunk_boundary(large: int) -> None:
    """However a stream is cut into reads, within headers, codes and stored bytes, the copy is the same."""
    stream, data = mixed()
    expected = copied(stream, len(data))
    assert expected[1] == data
    assert zlib.decompressobj(-15).decompress(expected[0] + raw(b"next")) == data + b"next"
    for room in [*range(2, 400), *range(400, len(stream) + 2, 97)]:
        assert copied(stream, len(data), large=large, room=room) == expected


def test_slow_sums_see_the_right_bytes() -> None:
    """Pieces are not written over before they are seen in the thread beside, whatever their sizes."""
    data = (TEXT[:200_000] + NOISE[:100_000] + bytes(400_000)) * 2

    class Slowly:
        def __init__(self) -> None:
            self.sum = hashlib.sha256()

        def update(self, piece: memoryview, /) -> None:
            for place in range(0, len(piece), 1000):
                self.sum.update(piece[place : place + 1000])  # holds the interpreter's lock: too small to let it go

    for room in (1000, 40_000):
        slowly, stream = Slowly(), raw(data)
        Inflater(io.BytesIO(), large=AHEAD, room=room).copy(
            io.BytesIO(stream).readinto, len(data), slowly, packed=len(stream)
        )
        assert slowly.sum.digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize("large", [AHEAD, ZLIB])
def test_reads_that_give_little(large: int) -> None:
    """A source may give single bytes."""
    stream, data = mixed()
    sink, source = io.BytesIO(), io.BytesIO(stream)

    def slowly(view: memoryview) -> int:
        return source.readinto(view[:1])

    Inflater(sink, large=large).copy(slowly, len(data), packed=len(stream))
    assert sink.getvalue() == copied(stream, len(data))[0]


def test_the_last_block_is_found_wherever_it_begins() -> None:
    """At each of the eight bits, for each kind of block, behind an unfinished block of each length."""
    found = set()
    for length in range(24):
        for tail in (b"", b"x", b"tail" * 9, NOISE[:40]):
            state = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_FIXED)
            stream = state.compress(b"q" * length + NOISE[:length]) + state.flush(zlib.Z_BLOCK)
            stream += state.compress(tail) + state.flush()
            data = b"q" * length + NOISE[:length] + tail
            ahead, alone = (copied(stream, len(data), large=large, room=1 << 10) for large in (AHEAD, ZLIB))
            assert ahead == alone
            found.add(ahead[3].last % 8)
    assert found == set(range(8))


def test_two_libraries_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ISA-L leads zlib astray nothing passes: what zlib reads from there must be what ISA-L has read."""
    stream = raw(TEXT)
    honest = igzip.Igzip.locate
    monkeypatch.setattr(igzip, "_works", lambda _: True)  # else it would not be used at all
    for off in (-9, -3, -1, 1, 2, 5, 8, 100):
        monkeypatch.setattr(igzip.Igzip, "locate", lambda *given, off=off: honest(*given) + off)
        with pytest.raises(CorruptStreamError):
            copied(stream, len(TEXT))


def test_without_isal_zlib_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of ISA-L without these functions, or whose state is laid out otherwise, is not used."""
    expected = copied(raw(TEXT), len(TEXT))
    monkeypatch.setattr(igzip, "_works", lambda _: False)
    assert igzip.load(BUFFER) is None
    assert copied(raw(TEXT), len(TEXT)) == expected
    monkeypatch.undo()
    assert igzip.load(BUFFER) is not None
    monkeypatch.setattr("isal.igzip_lib.__file__", zlib_ng.__file__)
    assert igzip.load(BUFFER) is None
    assert copied(raw(TEXT), len(TEXT)) == expected


def test_a_boundary_of_another_stream_is_seen_or_gives_other_bytes() -> None:
    """Never the right bytes by a wrong boundary: no last-block bit there, or a digest that differs."""
    stream = raw(TEXT)
    written, _, _, right = copied(stream, len(TEXT))
    for last in range(right.last - 40, right.last + 40):
        for unused in range(8):
            boundary = Boundary(last, unused)
            try:
                same = replayed(stream, boundary) == written
            except CorruptStreamError:
                same = False
            assert same == (boundary == right) or (last == right.last and not stream[-1] >> (8 - unused))
    with pytest.raises(CorruptStreamError, match="cut off"):
        replay(io.BytesIO(), io.BytesIO(stream[:-1]).readinto, len(stream), right)


def test_what_is_not_inflated_is_not_hashed() -> None:
    """A writer that hashes refuses to copy unseen, and one that does not gives no digest."""
    stream = raw(TEXT)
    boundary = copied(stream, len(TEXT))[3]
    writers = [GzipWriter(io.BytesIO(), hashed=hashed) for hashed in (True, False)]
    with pytest.raises(ValueError, match="cannot be hashed"):
        writers[0].replay(io.BytesIO(stream).readinto, len(stream), boundary, crc=0, size=0)
    with pytest.raises(ValueError, match="was not hashed"):
        assert writers[1].digest


def test_replayed_and_copied_make_the_same_member() -> None:
    """With the CRC and size that are known the member is the same to the last byte."""
    outputs = []
    for hashed in (True, False):
        sink = io.BytesIO()
        writer = GzipWriter(sink, hashed=hashed)
        for data in (b"", TEXT, NOISE):
            stream = raw(data)
            writer.write(b"between")
            if hashed:
                writer.copy(io.BytesIO(stream).readinto, len(data))
            else:
                boundary = copied(stream, len(data))[3]
                source = io.BytesIO(stream).readinto
                writer.replay(source, len(stream), boundary, crc=zlib.crc32(data), size=len(data))
        writer.close()
        outputs.append(sink.getvalue())
    assert outputs[0] == outputs[1]
    assert gzip.decompress(outputs[0]) == b"between" + b"between" + TEXT + b"between" + NOISE


@pytest.mark.parametrize("large", [AHEAD, ZLIB])
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
def test_a_stream_that_lies_is_refused(library: object, stream: bytes, size: int, what: str, large: int) -> None:
    """Cut, damaged, too long, too short, or followed by something: each is an error, and a bomb stops early."""
    with pytest.raises(CorruptStreamError, match=what):
        copied(stream, size, library(), large=large)  # type: ignore[operator]


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


def test_another_encoder_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes might be others than those that keys and locks stand for."""
    monkeypatch.setattr("deflate.__version__", "0.9.1")
    sink = io.BytesIO()
    with pytest.raises(HostError, match=r"deflate 0\.9\.1 might write other bytes than 0\.9\.0"):
        GzipWriter(sink)
    assert not sink.getvalue()


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
