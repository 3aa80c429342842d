"""A layer in zstd is the same tar, and its bytes depend on that tar and the level alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from hashlib import shake_128
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from tests.rawlayers import file
from torchkiln.errors import HostError, ImageError, UsageError
from torchkiln.layers import recompress as recompressing
from torchkiln.layers.recompress import JOB, recompress
from torchkiln.oci import content, zstd
from torchkiln.oci import digest as digests
from torchkiln.oci.compression import GZIP, Compression
from torchkiln.oci.image import PLAIN_TYPE, ZSTD_TYPE, Config, Image, Layer
from torchkiln.oci.store import Store
from torchkiln.oci.verify import verify

if TYPE_CHECKING:
    from torchkiln.oci.digest import Digest

THREE = Compression(kind="zstd", level=3)
GOLDEN = "sha256:d1abd2fcfbecc8f9b8802164dca39d8f87df25824ae09a7e58be59659da98de5"
"""Of `large` at level 3. If it changes, `Compression.FORMAT` goes up: the encoder writes other bytes."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


def large(store: Store) -> Layer:
    """A tar of several jobs, whose content repeats itself near and far, with every kind of entry."""
    noise = shake_128(b"any").digest(JOB // 2 + 12345)  # the same with every Python, unlike random's
    words = [noise[at : at + 3 + at % 27] for at in range(256)]
    text = b"".join(words[choice] for choice in noise[:200_000])
    members = [
        rawlayers.folder("a"),
        file("a/text", text),
        file("a/noise", noise),
        file("a/zeros", bytes(JOB)),
        rawlayers.symlink("a/link", "text"),
        rawlayers.hard_link("a/again", "a/text"),
        file("a/once more", text),
    ]
    return rawlayers.layer(store, *members)


def blobs(store: Store) -> set[Path]:
    """What is in the store, parts of blobs included."""
    return set(store.blobs.iterdir())


@pytest.mark.parametrize("level", [1, 9])
def test_the_tar_stays_the_same(store: Store, level: int) -> None:
    """Same diff_id, size and title; another blob, of zstd's media type; tarfile reads what was in it."""
    layer = large(store)
    made = recompress(store, layer, Compression(kind="zstd", level=level))
    assert made == replace(layer, descriptor=made.descriptor)
    assert made.descriptor.media_type == ZSTD_TYPE
    assert digests.of_bytes(store.read(made.descriptor.digest)) == made.descriptor.digest
    assert content.measure(store, made.descriptor.digest) == (layer.diff_id, layer.unpacked_size)
    with content.tar_of(store, made.descriptor.digest) as tar:
        assert [member.name for member, _ in tar.members()][-1] == "a/once more"
    store.put_image(Image(config=Config(), layers=(made,)), "zstd")
    assert verify(store, "zstd") == ()


def test_the_bytes_do_not_depend_on_threads(store: Store) -> None:
    """One, two, four or more threads, and once more: one blob, which is the golden one."""
    layer = large(store)
    found = {recompress(store, layer, THREE, threads=threads).descriptor.digest for threads in (1, 2, 4, 4)}
    assert found == {GOLDEN}


@pytest.mark.parametrize("size", [0, 1, 1000, 600_000, JOB - 1024, JOB, JOB + 1, 3 * JOB + 5])
def test_nor_where_jobs_end(store: Store, size: int) -> None:
    """Small tars, for which libzstd has another way, and those that end with a job, are the same for all."""
    layer = rawlayers.layer(store, file("a", shake_128(b"").digest(size)))
    assert len({recompress(store, layer, THREE, threads=threads).descriptor.digest for threads in (1, 2, 4)}) == 1


def test_the_bytes_do_not_depend_on_the_process(store: Store) -> None:
    """Another process, with another hash seed, time zone, locale and one core, makes the same blob."""
    layer = large(store)
    program = (
        "import json, os, sys, pathlib; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from torchkiln.layers.recompress import recompress; from torchkiln.oci.image import Layer\n"
        "from torchkiln.oci.compression import parse; from torchkiln.oci.store import Store\n"
        "layer = Layer.from_json(json.loads(sys.argv[2]))\n"
        "print(recompress(Store(pathlib.Path(sys.argv[1])), layer, parse('zstd')).descriptor.digest)\n"
    )
    environment = {"PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-c", program, str(store.root), json.dumps(layer.to_json())],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == GOLDEN


def test_levels_differ(store: Store) -> None:
    """A higher level is another blob: which is why it is part of the key."""
    layer = large(store)
    found: set[Digest] = {
        recompress(store, layer, Compression(kind="zstd", level=level)).descriptor.digest for level in (1, 3, 9)
    }
    assert len(found) == 3


@pytest.mark.parametrize("level", [-1, 0, 20, 22, 100])
def test_levels_that_readers_might_refuse_are_refused(store: Store, level: int) -> None:
    """They are none of ours, whoever asks."""
    layer = rawlayers.layer(store, file("a"))
    with pytest.raises(UsageError, match="no level"):
        recompress(store, layer, Compression(kind="zstd", level=level))


@pytest.mark.parametrize("level", [3, 19])
def test_every_decoder_has_room_for_it(store: Store, level: int) -> None:
    """A decoder that allows the 8 MiB that RFC 8878 asks for, and no more, reads it."""
    layer = rawlayers.layer(store, file("a", bytes(3 * JOB)))
    made = recompress(store, layer, Compression(kind="zstd", level=level))
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
    assert (
        len(zstd.ZstdDecompressor(options=options).decompress(store.read(made.descriptor.digest))) == made.unpacked_size
    )


def test_gzip_is_what_a_layer_is(store: Store) -> None:
    """Nothing is to be done, and the blob isn't even read."""
    layer = rawlayers.layer(store, file("a"))
    store.discard(layer.descriptor.digest)
    assert recompress(store, layer, GZIP) is layer


def test_a_plain_layer_is_compressed_too(store: Store) -> None:
    """Engines save plain tars; the form is told by the blob."""
    data = rawlayers.tar([file("a", b"x" * 5000)])
    plain = Layer(descriptor=store.put(data, PLAIN_TYPE), diff_id=digests.of_bytes(data), unpacked_size=len(data))
    made = recompress(store, plain, THREE)
    assert content.measure(store, made.descriptor.digest)[0] == plain.diff_id


@pytest.mark.parametrize("place", [5_000, -6, -1])
def test_a_damaged_blob_becomes_nothing(store: Store, place: int) -> None:
    """A changed bit of the deflate stream, of its checksum or its size is an error that names the blob."""
    layer = large(store)
    path = store.path(layer.descriptor.digest)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    before = blobs(store)
    with pytest.raises(ImageError, match=r"damaged|another tar|more than the stated"):
        recompress(store, layer, THREE)
    assert blobs(store) == before


@pytest.mark.parametrize("change", [{"unpacked_size": -512}, {"unpacked_size": 512}, {"diff_id": "other"}])
def test_another_tar_becomes_nothing(store: Store, change: dict[str, object]) -> None:
    """What is not the tar that was promised, or longer or shorter, isn't passed on under that promise."""
    layer = large(store)
    lie = (
        replace(layer, diff_id=digests.of_bytes(b"other"))
        if "diff_id" in change
        else replace(layer, unpacked_size=layer.unpacked_size + int(str(change["unpacked_size"])))
    )
    before = blobs(store)
    with pytest.raises(ImageError, match=r"another tar|more than the stated"):
        recompress(store, lie, THREE)
    assert blobs(store) == before


def test_it_stops_when_it_is_told_to(store: Store) -> None:
    """And leaves nothing: a build that fails elsewhere doesn't wait for a large layer."""
    layer, stop = large(store), Event()
    stop.set()
    before = blobs(store)
    with pytest.raises(HostError, match="stopped"):
        recompress(store, layer, THREE, stop=stop)
    assert blobs(store) == before


def test_another_libzstd_is_not_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write other bytes under the same key."""
    monkeypatch.setattr(zstd, "VERSION", "1.6.0")
    with pytest.raises(HostError, match=r"libzstd 1\.6\.0 would write other bytes"):
        recompress(store, rawlayers.layer(store, file("a")), THREE)


def test_a_full_disk_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the way out, and nothing left behind."""
    layer = large(store)
    before = blobs(store)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchkiln.oci.store.BlobWriter.write", full)
    with pytest.raises(HostError, match="disk is full"):
        recompress(store, layer, THREE)
    assert blobs(store) == before


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A tar of 16 jobs goes through less than 200 MB, all of the interpreter included."""
    program = (
        "import sys, pathlib; from torchkiln.layers import archive, recompress\n"
        "from torchkiln.layers.archive import Entry; from torchkiln.oci.compression import parse\n"
        "from torchkiln.oci.store import Store; import contextlib, io, random\n"
        "store = Store(pathlib.Path(sys.argv[1])); piece = random.Random(1).randbytes(8 << 20)\n"
        "open_ = lambda: contextlib.nullcontext(io.BytesIO(piece))\n"
        "entries = [(Entry(path=f'f{n:02}', kind='file', mode=0o644, size=8 << 20), open_) for n in range(16)]\n"
        "layer = archive.write_layer(store, 'large', entries); status = pathlib.Path('/proc/self/status')\n"
        "recompress.recompress(store, layer, parse('zstd')); print(status.read_text())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)
    assert int(peak) < 200_000


def test_layers_are_compressed_on_all_cores() -> None:
    """At least two at a time, since small ones are one job; at most four, since each needs memory."""
    assert 2 <= recompressing.at_once() <= 4
