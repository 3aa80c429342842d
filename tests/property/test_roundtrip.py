"""Whatever names and contents go in, two independent tar readers get them back, from one gzip member."""

from __future__ import annotations

import gzip
import io
import tempfile
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.toys import SITE, make_wheel, spec, tar_bytes, unpacked
from torchkiln import process
from torchkiln.layers import wheel
from torchkiln.layers.archive import Entry, order, write_layer
from torchkiln.layers.deflate import GzipWriter
from torchkiln.layers.inflate import Inflater, replay
from torchkiln.layers.runs import FEW, runs
from torchkiln.oci.store import Store

PART = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0\\", exclude_categories=("Cs", "Cc")), min_size=1, max_size=80
).filter(lambda part: part not in {".", ".."} and not part.startswith(".wh.") and len(part.encode()) < 256)
NAME = st.lists(PART, min_size=1, max_size=6).map("/".join)
CONTENT = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda data, count: data * count, st.binary(min_size=1, max_size=50), st.integers(0, 20000)),
)
SIZES = st.integers(0, 4000)
FILES = st.dictionaries(NAME, CONTENT, max_size=8)


def without_clashes(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out files that are also folders."""
    return {name: data for name, data in files.items() if not any(other.startswith(f"{name}/") for other in files)}


@given(files=FILES, mode=st.integers(0, 0o7777))
def test_any_files_come_back(files: dict[str, bytes], mode: int) -> None:
    """By Python's gzip and tarfile and, names and sizes, by GNU tar."""
    kept = without_clashes(files)
    entries = [(Entry(path=name, kind="file", mode=mode), kept[name]) for name in sorted(kept, key=order)]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        layer = write_layer(store, "any", iter(entries))
        found = unpacked(store, layer)
        assert {name: data for name, (entry, data) in found.items() if entry.isfile()} == kept
        assert all(entry.mode == mode for entry, _ in found.values() if entry.isfile())
        tar = tar_bytes(store, layer)
        assert gzip.decompress(store.read(layer.descriptor.digest)) == tar
        target = Path(folder) / "out"
        target.mkdir()
        gnu = process.run(["tar", "--extract", "--file", "-", "--to-stdout"], stdin=tar, cwd=target)
        assert (gnu.stderr, gnu.returncode) == (b"", 0)
        assert gnu.stdout == b"".join(kept[name] for name in sorted(kept, key=order))


@given(files=FILES, stored=st.sets(st.integers(0, 8)), streamed=st.booleans())
def test_any_wheel_comes_back(files: dict[str, bytes], stored: set[int], streamed: bool) -> None:  # noqa: FBT001
    """Members copied or stored, sizes before or behind the data: the layer holds the wheel's files, and once more."""
    kept = {f"toy/{name}": data for name, data in without_clashes(files).items()}
    with tempfile.TemporaryDirectory() as folder:
        path = make_wheel(
            Path(folder), files=kept, stored=[list(kept)[n] for n in stored if n < len(kept)], streamed=streamed
        )
        store, again, boundaries = Store(Path(folder) / "store"), Store(Path(folder) / "again"), Path(folder) / "b"
        layer = wheel.build(store, *spec(path), boundaries=boundaries)
        assert wheel.build(again, *spec(path), known=layer, boundaries=boundaries) == layer
        assert again.read(layer.descriptor.digest) == store.read(layer.descriptor.digest)
        found = unpacked(store, layer)
        names = {f"{SITE}/{name}": data for name, data in kept.items()}
        assert {name: data for name, (entry, data) in found.items() if entry.isfile() and "/toy/" in name} == names


@given(
    parts=st.lists(
        st.tuples(st.booleans(), st.binary(max_size=4000), st.integers(0, 9), st.sampled_from([0, 2, 3, 4])),
        max_size=12,
    )
)
def test_any_streams_join(parts: list[tuple[bool, bytes, int, int]]) -> None:
    """Plain or deflated at any level with any strategy, in any order."""
    sink = io.BytesIO()
    writer = GzipWriter(sink)
    for deflated, data, level, strategy in parts:
        if deflated:
            state = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
            stream = io.BytesIO(state.compress(data) + state.flush())
            assert writer.copy(stream.readinto, len(data))[0] == zlib.crc32(data)
        else:
            writer.write(data)
    writer.close()
    member = zlib.decompressobj(31)
    assert member.decompress(sink.getvalue()) == b"".join(data for _, data, _, _ in parts)
    assert member.eof
    assert member.unused_data == b""


@given(
    parts=st.lists(
        st.tuples(
            st.one_of(st.binary(max_size=300), st.builds(lambda data, n: data * n, st.binary(max_size=9), SIZES)),
            st.integers(0, 9),
            st.sampled_from([0, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]),
            st.sampled_from([zlib.Z_NO_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK]),
        ),
        min_size=1,
        max_size=6,
    ),
    room=st.integers(2, 5000),
)
def test_any_blocks_have_one_boundary(parts: list[tuple[bytes, int, int, int]], room: int) -> None:
    """Whoever looks for it, however the stream is cut into reads; and with it the copy is made without looking."""
    stream = data = b""
    for each, level, strategy, flush in parts:
        state = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
        stream += state.compress(each) + (state.flush(flush) if flush else b"") + state.flush(zlib.Z_FULL_FLUSH)
        data += each
    stream += state.flush()
    sinks = io.BytesIO(), io.BytesIO(), io.BytesIO()
    alone, ahead = (
        Inflater(sink, large=large, room=size).copy(io.BytesIO(stream).readinto, len(data), packed=len(stream))
        for sink, large, size in ((sinks[0], 1 << 60, 1 << 18), (sinks[1], 0, room))
    )
    assert alone == ahead
    assert alone[0] == zlib.crc32(data)
    replay(sinks[2], io.BytesIO(stream).readinto, len(stream), alone[1])
    assert sinks[0].getvalue() == sinks[1].getvalue() == sinks[2].getvalue()
    assert zlib.decompressobj(-15).decompress(sinks[0].getvalue() + b"\x03\0") == data


@given(pieces=st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 600).map(bytes)), max_size=12))
def test_runs_of_anything(pieces: list[bytes]) -> None:
    """Our own encoder gives back what it got, and ends on a byte without ending the stream."""
    data = b"".join(pieces)[:FEW]
    state = zlib.decompressobj(-15)
    assert state.decompress(runs(data) + b"\x03\0") == data
    assert state.eof
