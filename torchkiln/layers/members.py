"""Reads a zip's directory and its members' raw bytes, and believes neither before they agree.

The standard library parses the central directory; what it forgives is refused here: names cut at NUL, local headers
that tell another story, members that overlap. Sizes and checksums are claims until the data has passed through
`layers.inflate`.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.layers.inflate import Source

MOST_DIRECTORY = 32 << 20
"""Bytes of a zip's central directory: some twenty times torch's, and little enough to hold in memory as objects."""
REMEDY = "the wheel itself is bad: pin another version"
STORED = 0
DEFLATED = 8
_LOCAL = struct.Struct("<4s5H3L2H")
_FIELD = struct.Struct("<2H")
"""How each extra field begins: its kind and size (APPNOTE.TXT, 4.5.1)."""
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_DESCRIPTOR = 0x8
"""Sizes and checksum follow the data instead of standing before it."""
_UTF8 = 0x800
_WIDE = 0xFFFFFFFF
"""The value stands in the zip64 extra field."""
_SECOND_NAME = 0x7075
"""Info-ZIP's extra field with the name in UTF-8, which some readers believe, newer Pythons among them."""
_UNSAFE = re.compile(r"^/|(^|/)(\.{0,2}|\.wh\.[^/]*)(/|\Z)|[\0\\]|[^/]{256}")
"""Absolute; an empty, `.`, `..` or whiteout part; NUL, backslash; a part no file system holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in a zip, by its central directory entry."""

    name: str
    method: int
    flags: int
    crc: int
    size: int
    compressed: int
    """Bytes in the zip."""
    offset: int
    """Of its local header."""
    limit: int
    """Where the next thing in the zip begins."""
    executable: bool


class Zip:
    """An open zip: its files by name, in the order of the directory."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.members = {member.name: member for member in _directory(path)}

    def refuse(self, what: str, *, where: str = "") -> WheelError:
        """The error to raise about this file, or a member of it."""
        return WheelError(
            f"{self.path.name}: {what}",
            where=f"{self.path}, {where}" if where else str(self.path),
            remedy=REMEDY,
        )

    def source(self, member: Member) -> Source:
        """Reads a member's raw bytes, after its local header was held against the directory."""
        place, left = self._begin(member), member.compressed

        def readinto(view: memoryview) -> int:
            nonlocal place, left
            count = os.preadv(self._descriptor, [view[:left]], place)
            place, left = place + count, left - count
            return count

        return readinto

    def read(self, name: str, limit: int = 64 << 20) -> bytes:
        """A small file as a whole."""
        member = self.members[name]
        if max(member.size, member.compressed) > limit:
            raise self.refuse(f"{name} is larger than {limit} bytes")
        data = bytearray(member.compressed)
        filled = self.source(member)(memoryview(data))
        try:
            plain = bytes(data) if member.method == STORED else _inflate(data, member.size)
        except zlib.error as error:
            raise self.refuse(f"{name} is damaged: {error}") from error
        if filled < member.compressed or len(plain) != member.size or zlib.crc32(plain) != member.crc:
            raise self.refuse(f"{name} is not what the zip says: {len(plain)} bytes, crc {zlib.crc32(plain):08x}")
        return plain

    def _begin(self, member: Member) -> int:
        """Offset of a member's data."""
        encoded = member.name.encode("utf-8" if member.flags & _UTF8 else "cp437")
        head = os.pread(self._descriptor, _LOCAL.size + len(encoded), member.offset)
        if len(head) < _LOCAL.size + len(encoded):
            raise self.refuse("is cut off", where=member.name)
        magic, _, flags, method, _, _, crc, compressed, size, name, extra = _LOCAL.unpack_from(head)
        begin = int(member.offset + _LOCAL.size + name + extra)
        same = magic == b"PK\3\4" and head[_LOCAL.size :] == encoded and name == len(encoded)
        same = same and (flags, method) == (member.flags, member.method)
        stated = ((crc, member.crc), (compressed, member.compressed), (size, member.size))
        late = bool(flags & _DESCRIPTOR)
        same = same and all(here in (there, _WIDE) or (late and not here) for here, there in stated)
        if not same:
            raise self.refuse("the directory and the header before the data differ", where=member.name)
        if begin + member.compressed > member.limit:
            raise self.refuse("members overlap", where=member.name)
        return begin


def _inflate(data: bytearray, size: int) -> bytes:
    state = zlib.decompressobj(-15)
    plain = state.decompress(data, size + 1)
    if not state.eof or state.unused_data:
        raise zlib.error("not one whole deflate stream")
    return plain


@contextmanager
def opened(path: Path) -> Iterator[Zip]:
    """Open a zip; WheelError if its directory is damaged or holds what no layer may."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield Zip(path, descriptor)
    finally:
        os.close(descriptor)


def _directory(path: Path) -> list[Member]:
    try:
        with _Bounded(path) as file, zipfile.ZipFile(file) as archive:
            entries, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, EOFError, OverflowError) as error:
        raise WheelError(
            f"{path.name} is not a whole zip file: {error}",
            where=str(path),
            remedy="it is cut off or damaged: delete it to fetch it again",
        ) from error
    _check_names(path, entries)
    ordered = sorted(entries, key=lambda entry: entry.header_offset)
    limits = [entry.header_offset for entry in ordered[1:]] + [end]
    return [_member(path, entry, limit) for entry, limit in zip(ordered, limits, strict=True) if not entry.is_dir()]


class _Bounded(io.FileIO):
    """A zip file whose directory, which is read at once, may not have any size that it states."""

    def read(self, size: int | None = -1, /) -> bytes:
        """WheelError beyond the bound."""
        if size is not None and size > MOST_DIRECTORY:
            path = Path(os.fsdecode(self.name))
            what = f"{path.name}: its directory has {size} bytes; no wheel has more than {MOST_DIRECTORY}"
            raise WheelError(what, where=str(path), remedy=REMEDY)
        return super().read(size)


def _check_names(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse unsafe names, names that occur twice, and those that readers take in two ways, all at once."""
    names = [entry.orig_filename for entry in entries]
    bad = [f"unsafe name {name!r}" for name in names if _UNSAFE.search(name.removesuffix("/"))]
    bad += [f"two members are called {name!r}" for name, count in Counter(names).items() if count > 1]
    bad += [f"{entry.orig_filename!r} has a second name" for entry in entries if _has_second_name(entry.extra)]
    if bad:
        raise WheelError(f"{path.name}: {'; '.join(bad[:5])}", where=str(path), remedy=REMEDY)


def _has_second_name(extra: bytes) -> bool:
    while len(extra) >= _FIELD.size:
        kind, size = _FIELD.unpack_from(extra)
        if kind == _SECOND_NAME:
            return True
        extra = extra[_FIELD.size + size :]
    return False


def _member(path: Path, entry: zipfile.ZipInfo, limit: int) -> Member:
    mode = entry.external_attr >> 16
    kind = stat.S_IFMT(mode)
    what = ""
    if not 0 <= entry.header_offset < limit:
        what = "lies outside the file, which is cut off or damaged"
    elif entry.flag_bits & _ENCRYPTED:
        what = "is encrypted"
    elif entry.compress_type not in (STORED, DEFLATED):
        what = f"uses compression method {entry.compress_type}; a wheel may store (0) or deflate (8)"
    elif kind not in (0, stat.S_IFREG):
        what = "is a link" if kind == stat.S_IFLNK else "is not a regular file"
    if what:
        raise WheelError(f"{path.name}: {entry.filename} {what}", where=str(path), remedy=REMEDY)
    return Member(
        name=entry.orig_filename,
        method=entry.compress_type,
        flags=entry.flag_bits,
        crc=entry.CRC,
        size=entry.file_size,
        compressed=entry.compress_size,
        offset=entry.header_offset,
        limit=limit,
        executable=bool(mode & 0o111),
    )
