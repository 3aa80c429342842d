"""Headers of a tar: a block and what extends it → an entry, or a refusal; pure.

By layer.md: pax (POSIX.1-2017, "ustar Interchange Format", "pax Extended Header") and GNU ("Basic Tar Format").
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from torchkiln.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCK = 512
LONGEST_HEADER = 1 << 20
"""Bytes of an extended header, as for Go's archive/tar, so for engines."""
LATEST = 1 << 33
"""Seconds; no file system that we know keeps a later time."""
EARLIEST = -(1 << 31)
MOST_OWNERS = (1 << 32) - 1
"""The last one is chown's "leave it"."""
NAMED = 200
"""Characters of a name that an error repeats."""

Kind = Literal["file", "folder", "symlink", "link", "fifo", "device"]
_KINDS: Mapping[bytes, Kind] = {
    b"\0": "file",
    b"0": "file",
    b"7": "file",  # contiguous, which no system tells apart
    b"1": "link",
    b"2": "symlink",
    b"3": "device",
    b"4": "device",
    b"5": "folder",
    b"6": "fifo",
}
EXTENSIONS = frozenset({b"x", b"g", b"L", b"K"})
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s82x155s12x")
_CHECKSUM = slice(148, 156)
_TIME = re.compile(r"(-?)(\d{1,15})(?:\.(\d*))?", re.ASCII)
_DECIMAL = re.compile(r"\d{1,19}", re.ASCII)
_STEERING = ("path", "linkpath", "size", "uid", "gid", "mtime", "SCHILY.", "LIBARCHIVE.", "GNU.sparse.")
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry, as it stands; a name may be anything but empty, and holds no NUL."""

    name: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    """Bytes of content; only files have any."""
    mtime_ns: int
    target: str
    """Of a link, of either kind."""
    headers: Mapping[str, str]
    """Its pax records."""


class Fields(NamedTuple):
    """A header block, as it stands."""

    name: bytes
    mode: bytes
    uid: bytes
    gid: bytes
    size: bytes
    mtime: bytes
    checksum: bytes
    flag: bytes
    target: bytes
    magic: bytes
    prefix: bytes


def read(block: bytes, place: int) -> Fields:
    """A block as a header; ImageError if it is none, `place` being where it begins."""
    if len(block) < BLOCK:
        raise ImageError(f"not a tar archive: it ends within a header, at byte {place + len(block)}")
    fields = Fields(*_HEADER.unpack(block))
    if not _sound(block, _number(fields.checksum, "a checksum")):
        raise ImageError(f"a broken header at byte {place} of the tar")
    return fields


def _sound(block: bytes, stated: int) -> bool:
    """Whether the bytes, spaces standing for the checksum, have that sum; some old tars took them with a sign."""
    rest = block[: _CHECKSUM.start] + b" " * 8 + block[_CHECKSUM.stop :]
    unsigned = sum(rest)
    return stated == unsigned or stated == unsigned - 256 * sum(byte >> 7 for byte in rest)


def length(fields: Fields) -> int:
    """Bytes of an extended header; ImageError beyond the bound."""
    size = _number(fields.size, "a size")
    if not 0 <= size <= LONGEST_HEADER:
        raise ImageError(f"a header of {size} bytes", remedy="rebuild the image with another tool")
    return size


def harmless(data: bytes) -> None:
    """ImageError for a global header that changes entries: engines ignore it, tar does not."""
    wrong = [key for key in _records(data) if key.startswith(_STEERING)]
    if wrong:
        raise ImageError(f"a global header sets {wrong[0][:NAMED]!r} of all entries")


def _said(extended: Mapping[bytes, bytes]) -> Mapping[str, str]:
    """What extended headers say of the next entry, in pax's words."""
    if not extended:
        return _NONE
    said = _records(extended[b"x"]) if b"x" in extended else {}
    for flag, key in ((b"L", "path"), (b"K", "linkpath")):
        if flag in extended:
            if key in said:
                raise ImageError(f"two names for one entry: {said[key][:NAMED]!r}")
            said[key] = _text(extended[flag].partition(b"\0")[0])
    return said


def _records(data: bytes) -> dict[str, str]:
    r"""`%d %s=%s\n`, the number being the record's own length (pax Extended Header)."""
    found = {}
    place = 0
    while place < len(data) and data[place]:  # some writers fill up with zeros
        length, space, _ = data[place : place + 20].partition(b" ")
        end = place + int(length) if length.isdigit() else 0
        key, equals, value = data[place + len(length) + 1 : end].partition(b"=")
        if not space or end > len(data) or not key or not equals or not value.endswith(b"\n"):
            raise ImageError("not a tar archive: a broken extended header")
        found[_text(key)] = _text(value[:-1])
        place = end
    return found


def entry(fields: Fields, extended: Mapping[bytes, bytes]) -> Entry:
    """What a header says with the extended ones before it, each by its flag; ImageError for what no entry can be."""
    said = _said(extended)
    name = said.get("path") or _text(_joined(fields))
    target = said.get("linkpath") or _text(fields.target.partition(b"\0")[0])
    shown = name[:NAMED]
    kind = _KINDS.get(fields.flag)
    sparse = next((key for key in said if key.startswith("GNU.sparse.")), None)
    if sparse or fields.flag == b"S":
        raise ImageError(f"a sparse file: {shown!r}")  # layer.md forbids them
    if kind is None:
        raise ImageError(f"an entry of unknown type {fields.flag!r}: {shown!r}")
    if "\0" in name or "\0" in target:
        raise ImageError(f"a name with NUL: {shown!r}")
    if fields.flag == b"\0" and name.endswith("/"):  # as the seventh edition of Unix wrote folders
        kind = "folder"
    size = _stated(said, "size", fields.size, shown)
    uid, gid = _stated(said, "uid", fields.uid, shown), _stated(said, "gid", fields.gid, shown)
    if size < 0 or not 0 <= uid < MOST_OWNERS or not 0 <= gid < MOST_OWNERS:
        raise ImageError(f"a size or owner that is none: {size}, {uid}:{gid} of {shown!r}")
    return Entry(
        name=name,
        kind=kind,
        mode=_number(fields.mode, "a mode") & 0o7777,
        uid=uid,
        gid=gid,
        size=size if kind == "file" else 0,  # others have no content, whatever they state
        mtime_ns=_time(said, fields, shown),
        target=target if kind in {"symlink", "link"} else "",
        headers=said,
    )


def _joined(fields: Fields) -> bytes:
    name, prefix = fields.name.partition(b"\0")[0], fields.prefix.partition(b"\0")[0]
    return b"/".join((prefix, name)) if prefix and fields.magic == b"ustar\0" else name  # GNU has other fields there


def _stated(said: Mapping[str, str], key: str, field: bytes, shown: str) -> int:
    stated = said.get(key)
    if not stated:
        return _number(field, f"a {key}")
    if not _DECIMAL.fullmatch(stated):
        raise ImageError(f"a {key} that is none: {stated[:NAMED]!r} of {shown!r}")
    return int(stated)


def _time(said: Mapping[str, str], fields: Fields, shown: str) -> int:
    """Exact: bytecode is valid only for the very time of its source, and a float would round nanoseconds."""
    stated = said.get("mtime") or str(_number(fields.mtime, "a time"))
    found = _TIME.fullmatch(stated)
    if found is None or not EARLIEST <= int(found[1] + found[2]) < LATEST:
        raise ImageError(f"a time that is none: {stated[:NAMED]!r} of {shown!r}")
    moment = int(found[2]) * 10**9 + int(((found[3] or "") + "0" * 9)[:9])
    return -moment if found[1] else moment


def _number(field: bytes, what: str) -> int:
    """Octal digits up to a NUL or space, or in base 256 as GNU tar writes what is larger."""
    if field[0] & 0x80:
        bits = 8 * len(field) - 1
        value = int.from_bytes(field, "big") & ((1 << bits) - 1)
        return value - (1 << bits) if field[0] & 0x40 else value
    digits = field.lstrip(b" \0").partition(b"\0")[0].rstrip(b" ")
    if digits.strip(b"01234567"):
        raise ImageError(f"a broken header: {what} of {field!r}")
    return int(digits or b"0", 8)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
