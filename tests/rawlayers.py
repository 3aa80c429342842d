"""Layers written entry by entry, also ones that no sane tool writes; and processes to look for."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchkiln.oci import digest as digests
from torchkiln.oci import zstd
from torchkiln.oci.image import LAYER_TYPE, ZSTD_TYPE, Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torchkiln.oci.store import Store

MOMENT = 315619200


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One entry of a tar, as it stands."""

    name: str
    kind: bytes = tarfile.REGTYPE
    content: bytes = b""
    target: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)

    def info(self) -> tarfile.TarInfo:
        """As tarfile wants it."""
        info = tarfile.TarInfo(self.name)
        info.type, info.linkname, info.mode = self.kind, self.target, self.mode
        info.uid, info.gid, info.mtime = self.uid, self.gid, MOMENT
        info.size, info.pax_headers = len(self.content), dict(self.headers)
        return info


def file(name: str, content: bytes = b"", **more: object) -> Member:
    """A regular file."""
    return Member(name=name, content=content, **more)  # type: ignore[arg-type]


def folder(name: str, mode: int = 0o755, **more: object) -> Member:
    """A folder."""
    return Member(name=name, kind=tarfile.DIRTYPE, mode=mode, **more)  # type: ignore[arg-type]


def symlink(name: str, target: str) -> Member:
    """A symbolic link."""
    return Member(name=name, kind=tarfile.SYMTYPE, target=target, mode=0o777)


def hard_link(name: str, target: str) -> Member:
    """A hard link."""
    return Member(name=name, kind=tarfile.LNKTYPE, target=target)


def tar(members: Iterable[Member]) -> bytes:
    """The archive."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            archive.addfile(member.info(), io.BytesIO(member.content))
    return written.getvalue()


def packed(data: bytes, media_type: str) -> bytes:
    """A tar in the form of a media type; one that ends in neither +gzip nor +zstd leaves it as it is."""
    if media_type == ZSTD_TYPE:
        writer = zstd.ZstdCompressor(options={zstd.CompressionParameter.checksum_flag: 1})
        return writer.compress(data) + writer.flush()
    return gzip.compress(data, mtime=0) if media_type.endswith("gzip") else data


def layer(store: Store, *members: Member, raw: bytes | None = None, media_type: str = LAYER_TYPE) -> Layer:
    """A layer in the store with these entries, or with any bytes for a tar."""
    content = tar(members) if raw is None else raw
    descriptor = store.put(packed(content, media_type), media_type)
    return Layer(descriptor=descriptor, diff_id=digests.of_bytes(content), unpacked_size=len(content), title="toy")


def listing(tree: Path) -> dict[str, str]:
    """Every path of a tree with its content, its target, or `/`."""
    found = {}
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        found[name] = str(path.readlink()) if path.is_symlink() else "/" if path.is_dir() else path.read_text()
    return found


def snapshot(tree: Path) -> dict[str, tuple[object, ...]]:
    """Everything about every path of a tree, the root too; names of one file share a number."""
    files: dict[int, int] = {}
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([tree, *tree.rglob("*")], key=os.fsencode):
        about = path.lstat()
        holds: object = ""
        if stat.S_ISREG(about.st_mode):
            holds = path.read_bytes()
        elif stat.S_ISLNK(about.st_mode):
            holds = str(path.readlink())
        number = 0 if stat.S_ISDIR(about.st_mode) else files.setdefault(about.st_ino, len(files))
        name = str(path.relative_to(tree))
        found[name] = (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, holds, number)
    return found
