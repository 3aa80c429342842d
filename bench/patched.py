"""A small package and a base that changed since: made here, so that nobody waits for the next security update."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename

from torchkiln.lock.lockfile import Pin
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, Descriptor, Layer
from torchkiln.specs import LAYER_TIME

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "filelock"
"""Small, pure, and required by torch: every row has it."""
FILE = "usr/lib/x86_64-linux-gnu/libssl.so.3"
"""What the update of the base brings anew."""


def wheel(old: Path, folder: Path) -> tuple[Pin, Path]:
    """The same wheel as a later post release, and its pin."""
    name, version, *_ = parse_wheel_filename(old.name)
    stem, later = old.name.split("-")[0], f"{version}.post1"
    path = folder / old.name.replace(f"-{version}-", f"-{later}-", 1)
    info = f"{stem}-{later}.dist-info"
    with zipfile.ZipFile(old) as source:
        files = {
            one.replace(f"{stem}-{version}.dist-info", info, 1): source.read(one)
            for one in source.namelist()
            if not one.endswith(("/", "RECORD"))
        }
    stated = f"\nVersion: {version}\n".encode()
    files[f"{info}/METADATA"] = files[f"{info}/METADATA"].replace(stated, f"\nVersion: {later}\n".encode(), 1)
    record = [f"{one},sha256={_hash(data)},{len(data)}" for one, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as sink:
        for one, data in files.items():
            sink.writestr(zipfile.ZipInfo(one, (1980, 1, 2, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    found, size = digests.of_file(path)
    return Pin(name=name, version=later, sha256=digests.encoded(found), filename=path.name, size=size), path


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def base(old: Layer, blob: Path, place: Path) -> Layer:
    """The base with one library changed, as a layer whose blob is written to `place`."""
    tar = bytearray(gzip.decompress(blob.read_bytes()))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        member = archive.getmember(next(name for name in archive.getnames() if name.lstrip("./") == FILE))
        start = member.offset_data
    tar[start + member.size - 1] ^= 1
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=LAYER_TIME) as sink:
        sink.write(tar)
    digest, size = digests.of_file(place)
    descriptor = Descriptor(media_type=LAYER_TYPE, digest=digest, size=size)
    return Layer(descriptor=descriptor, diff_id=digests.of_bytes(bytes(tar)), unpacked_size=len(tar), title=old.title)
