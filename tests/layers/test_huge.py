"""Sizes and places beyond 4 GiB, where 32 bits end: in the zip, in the tar, at the end of the gzip member."""

from __future__ import annotations

import base64
import hashlib
import struct
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING

from isal import igzip, isal_zlib

from tests.toys import SITE, make_wheel, pin, unpacked
from torchkiln.layers import wheel
from torchkiln.layers.inflate import LARGE
from torchkiln.oci.store import Store
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
ZEROS = 4096
"""MiB of zeros: 4 GiB, of which a deflate stream takes 4 MB."""
TAIL = b"tail!"
HASH = "fbab6d9a79df0a84cea59a2686e1b12b1cfe341b1b71571578cf4d161c0a3f7b"
"""sha256 of the zeros and the tail."""


def raw(data: bytes, flush: int = zlib.Z_FINISH) -> bytes:
    """Deflated blocks; with a full flush they can be repeated as often as one likes."""
    state = zlib.compressobj(9, zlib.DEFLATED, -15)
    return state.compress(data) + state.flush(flush)


def huge_stream() -> tuple[bytes, int]:
    """A deflate stream of 4 GiB and 5 bytes, and the CRC-32 of what is in it."""
    crc, count = isal_zlib.crc32(bytes(MIB)), MIB
    while count < ZEROS * MIB:
        crc, count = isal_zlib.crc32_combine(crc, crc, count), count * 2
    return raw(bytes(MIB), zlib.Z_FULL_FLUSH) * ZEROS + raw(TAIL), isal_zlib.crc32(TAIL, crc)


def add_stream(archive: zipfile.ZipFile, name: str, stream: bytes, size: int, crc: int) -> None:
    """Add a member that is deflated already."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
    entry.file_size, entry.compress_size, entry.CRC = size, len(stream), crc
    assert archive.fp is not None
    archive.fp.seek(archive.start_dir)
    entry.header_offset = archive.fp.tell()
    archive.fp.write(entry.FileHeader(zip64=True) + stream)
    archive.start_dir = archive.fp.tell()
    archive.filelist.append(entry)
    archive.NameToInfo[name] = entry
    archive._didModify = True  # type: ignore[attr-defined]  # so that a directory is written


def record(name: str, sha256: str, size: int) -> str:
    """A line of RECORD."""
    value = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
    return f"{name},sha256={value},{size}"


def huge_wheel(folder: Path) -> Path:
    """A member of more than 4 GiB, and behind a hole in the file one that lies beyond 4 GiB."""
    size, far = ZEROS * MIB + len(TAIL), b"far = 1\n"
    claims = {"toy/huge": record("toy/huge", HASH, size)}
    claims |= {"toy/far.py": record("toy/far.py", hashlib.sha256(far).hexdigest(), len(far))}
    path = make_wheel(folder, claims=claims)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        stream, crc = huge_stream()
        assert len(stream) > LARGE  # so that both libraries take part
        add_stream(archive, "toy/huge", stream, size, crc)
        archive.start_dir += 1 << 32
        archive.writestr(zipfile.ZipInfo("toy/far.py", (1980, 1, 1, 0, 0, 0)), far, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size > 1 << 32
    assert path.stat().st_blocks < 1 << 16  # a sparse file: 32 MiB at most
    return path


def test_more_than_4_gib(tmp_path: Path) -> None:
    """Sizes, offsets and the length at the end of gzip are right, first and with what was remembered."""
    path = huge_wheel(tmp_path)
    made = pin(make_wheel(tmp_path / "small"))  # hashing the hole takes seconds, and no one asks
    spec, paths = WheelSpec(pins=(made,)), {made.sha256: path}
    store, again, boundaries = Store(tmp_path / "store"), Store(tmp_path / "again"), tmp_path / "boundaries"
    layer = wheel.build(store, spec, paths, boundaries=boundaries)
    assert layer.unpacked_size > ZEROS * MIB
    assert layer.descriptor.size < 6 * MIB
    assert wheel.build(again, spec, paths, known=layer, boundaries=boundaries) == layer
    blob = again.path(layer.descriptor.digest)
    assert blob.read_bytes()[-4:] == struct.pack("<I", layer.unpacked_size & 0xFFFFFFFF)
    sizes = {}
    with igzip.open(blob) as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=MIB) as archive:  # type: ignore[no-untyped-call]
        for entry in archive:
            sizes[entry.name] = entry.size
            if entry.name == f"{SITE}/toy/far.py":
                far = archive.extractfile(entry)
                assert far is not None
                assert far.read() == b"far = 1\n"
    assert sizes[f"{SITE}/toy/huge"] == ZEROS * MIB + len(TAIL)


def test_a_member_of_one_block_larger_than_any_buffer(tmp_path: Path) -> None:
    """A last block that goes on for many reads."""
    state = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_FIXED)
    data = bytes(range(144, 256)) * 30_000  # nine bits each, had the encoder nothing to repeat
    stream = state.compress(data) + state.flush()
    path = make_wheel(tmp_path, claims={"toy/one": record("toy/one", hashlib.sha256(data).hexdigest(), len(data))})
    with zipfile.ZipFile(path, "a") as archive:
        add_stream(archive, "toy/one", stream, len(data), zlib.crc32(data))
    made = pin(path)
    store = Store(tmp_path / "store")
    layer = wheel.build(store, WheelSpec(pins=(made,)), {made.sha256: path})
    assert unpacked(store, layer)[f"{SITE}/toy/one"][1] == data
