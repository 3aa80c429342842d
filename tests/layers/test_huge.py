"""Sizes and places beyond 4 GiB, where 32 bits end, in zip, tar and gzip; and memory that does not grow with them."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import struct
import sys
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING

from isal import igzip, isal_zlib

from tests.toys import SITE, make_wheel, pin, unpacked
from torchkiln import process
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


MEMBER = 160
"""MiB of each kind of member."""
HIGH = 80
"""MiB that a process may need to convert them: about 35, most of them the interpreter's and libraries', and room."""
CONVERT = """
import re, sys
from pathlib import Path
from tests.toys import spec
from torchkiln.layers import wheel
from torchkiln.oci.store import Store
path, folder = map(Path, sys.argv[1:])
made, paths = spec(path)
store, boundaries = Store(folder / "store"), folder / "boundaries"
first = wheel.build(store, made, paths, boundaries=boundaries)
assert wheel.build(store, made, paths, known=first, boundaries=boundaries) == first
assert wheel.build(store, made, paths, known=first) == first
print(first.unpacked_size, re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
"""VmHWM, not ru_maxrss: that one counts what the parent had before exec(2), proc_pid_status(5)."""


def large_wheel(folder: Path) -> Path:
    """Members that deflate well, hardly, and that the zip did not compress, each larger than any memory here."""
    noise, zeros = random.Random(0).randbytes(MIB), bytes(MIB)  # noqa: S311  no secret
    noise_sum, zeros_sum, noise_crc, zeros_crc = hashlib.sha256(), hashlib.sha256(), 0, 0
    for _ in range(MEMBER):
        noise_sum.update(noise)
        zeros_sum.update(zeros)
        noise_crc, zeros_crc = isal_zlib.crc32(noise, noise_crc), isal_zlib.crc32(zeros, zeros_crc)
    size, end = MEMBER * MIB, raw(b"")
    sums = {"toy/noise": noise_sum, "toy/zeros": zeros_sum, "toy/stored": zeros_sum}
    path = make_wheel(folder, claims={name: record(name, each.hexdigest(), size) for name, each in sums.items()})
    with zipfile.ZipFile(path, "a") as archive:
        add_stream(archive, "toy/noise", raw(noise, zlib.Z_FULL_FLUSH) * MEMBER + end, size, noise_crc)
        add_stream(archive, "toy/zeros", raw(zeros, zlib.Z_FULL_FLUSH) * MEMBER + end, size, zeros_crc)
        entry = zipfile.ZipInfo("toy/stored", (1980, 1, 1, 0, 0, 0))
        entry.external_attr = 0o100644 << 16
        with archive.open(entry, "w") as stored:
            for _ in range(MEMBER):
                stored.write(zeros)
    return path


def test_memory_does_not_grow_with_a_wheel(tmp_path: Path) -> None:
    """Members of hundreds of megabytes pass in pieces: made, made again with what was remembered, and without."""
    path = large_wheel(tmp_path)
    assert path.stat().st_size > 2 * MEMBER * MIB
    script = tmp_path / "convert.py"
    script.write_text(CONVERT)
    command = [sys.executable, str(script), str(path), str(tmp_path / "made")]
    done = process.run(command, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr.decode()
    unpacked_size, high = map(int, done.stdout.split())
    assert unpacked_size > 3 * MEMBER * MIB
    assert high < HIGH << 10
