"""The only tar writer: order, times, owners, modes of every layer are decided here.

The format is POSIX.1-2001: ustar headers, and extended (PAX) headers only where ustar has no room or no alphabet.
Rules for layers are of the OCI image-spec, layer.md: no path twice, parents before children, no whiteout names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, Literal

from torchkiln.errors import ImageError, LayerMismatchError
from torchkiln.layers.deflate import GzipWriter
from torchkiln.oci.image import LAYER_TYPE, Descriptor, Layer
from torchkiln.specs import LAYER_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torchkiln.layers.inflate import Sink
    from torchkiln.oci.store import Store

    Content = bytes | None | Callable[[], AbstractContextManager[BinaryIO]]
    """A file's bytes, or how to open them; None for what has none."""

BLOCK = 512
_READ = 1 << 20
_TYPES = {"file": b"0", "hardlink": b"1", "symlink": b"2", "directory": b"5"}
_MODES = {"tmp": 0o1777, "var/tmp": 0o1777, "workspace": 0o1777, "root": 0o700, "home/torch": 0o775}
_SHARED = re.compile(r"(opt/venv|home/torch)(/|\Z)")
"""Folders where group 0 may write."""
_UNSAFE = re.compile(r"^/|(^|/)(\.{0,2}|\.wh\.[^/]*)(/|\Z)|[\0\ud800-\udfff]")
"""Absolute; an empty, `.`, `..` or whiteout component; NUL; what is not Unicode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a layer says about one path."""

    path: str
    """Relative, parts joined by `/`."""
    kind: Literal["directory", "file", "symlink", "hardlink"]
    mode: int
    size: int = 0
    """Bytes of content; of files only."""
    target: str = ""
    """Where a link points: as it stands for a symlink, a path of this layer for a hard link."""
    uid: int = 0
    gid: int = 0
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    """Extended attributes such as `security.capability`."""


def directory_mode(path: str) -> int:
    """The mode of a directory that nothing but its path speaks of; the same in every layer, since the last one wins."""
    return _MODES.get(path) or (0o775 if _SHARED.match(path) else 0o755)


def directory(path: str) -> Entry:
    """A directory with the mode its path has in every layer."""
    return Entry(path=path, kind="directory", mode=directory_mode(path))


def order(path: str) -> str:
    """Sort key that puts a directory right before all that is in it."""
    return path.replace("/", "\0")


def header(entry: Entry) -> bytes:
    """The header blocks of an entry: ustar, after an extended header where that is needed."""
    name = entry.path.encode() + (b"/" if entry.kind == "directory" else b"")
    target = entry.target.encode()
    prefix, short = _split(name)
    records = {f"SCHILY.xattr.{key}": value for key, value in entry.xattrs.items()}
    records |= {} if short or prefix else {"path": name}
    records |= {} if _fits(target) else {"linkpath": target}
    numbers = {"size": entry.size, "uid": entry.uid, "gid": entry.gid}
    records |= {key: b"%d" % value for key, value in numbers.items() if value >= _ROOM[key]}
    extended = _extended(records) if records else b""
    return extended + _ustar(
        name=short or name[:100].decode("ascii", "replace").replace("\ufffd", "?").encode(),
        prefix=prefix,
        mode=entry.mode,
        numbers={key: value if value < _ROOM[key] else 0 for key, value in numbers.items()},
        kind=_TYPES[entry.kind],
        target=target if _fits(target) else b"",
    )


_ROOM = {"size": 8**11, "uid": 8**7, "gid": 8**7}
"""First number too large for its octal field."""


def _fits(name: bytes) -> bool:
    return len(name) <= 100 and name.isascii()  # noqa: PLR2004  the width of the field


def _split(name: bytes) -> tuple[bytes, bytes]:
    """Prefix and name fields of ustar; both empty if the path fits neither whole nor split at a slash."""
    if _fits(name):
        return b"", name
    cut = name.rfind(b"/", 0, min(156, len(name) - 1))
    if cut <= 0 or not name.isascii() or len(name) - cut - 1 > 100:  # noqa: PLR2004  the width of the field
        return b"", b""
    return name[:cut], name[cut + 1 :]


def _ustar(*, name: bytes, prefix: bytes, mode: int, numbers: Mapping[str, int], kind: bytes, target: bytes) -> bytes:
    uid, gid, size = numbers["uid"], numbers["gid"], numbers["size"]
    fields = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, uid, gid, size, LAYER_TIME)
    magic = b"ustar\00000" + bytes(64) + b"0000000\0" * 2
    total = sum(name) + sum(fields) + 8 * 0x20 + kind[0] + sum(target) + sum(magic) + sum(prefix)
    return b"".join(
        (
            name.ljust(100, b"\0"),
            fields,
            b"%06o\0 " % total,
            kind,
            target.ljust(100, b"\0"),
            magic,
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )


def _extended(records: Mapping[str, bytes]) -> bytes:
    """An extended header: its own ustar header, then `length key=value` lines, sorted (POSIX.1-2001, pax)."""
    data = b"".join(_record(key, value) for key, value in sorted(records.items()))
    numbers = {"size": len(data), "uid": 0, "gid": 0}
    head = _ustar(name=b"././@PaxHeader", prefix=b"", mode=0o644, numbers=numbers, kind=b"x", target=b"")
    return head + data + bytes(-len(data) % BLOCK)


def _record(key: str, value: bytes) -> bytes:
    """One line, whose length counts its own digits."""
    line = b" %s=%s\n" % (key.encode(), value)
    length = len(line)
    while length != len(line) + len(str(length)):
        length = len(line) + len(str(length))
    return b"%d%s" % (length, line)


class Archive:
    """A tar in the making: adds missing parents and refuses what a layer must not hold.

    After `add`, exactly `entry.size` bytes go into `gzip`, plain or as a deflate stream.
    """

    def __init__(self, sink: Sink, title: str, *, hashed: bool = True) -> None:
        self.gzip = GzipWriter(sink, hashed=hashed)
        self._title = title
        self._kinds: dict[str, str] = {}
        self._end = 0

    def add(self, entry: Entry) -> None:
        """Begin an entry, after its parents; ImageError if it is unsafe, or there already."""
        if _UNSAFE.search(entry.path):
            raise ImageError(f"unsafe path {entry.path!r}", where=self._title)
        if entry.path in self._kinds:
            raise ImageError(f"{entry.path} is there already, as a {self._kinds[entry.path]}", where=self._title)
        for parent in self._missing(entry.path):
            self._write(directory(parent))
        self._write(entry)

    def close(self) -> None:
        """Write the end of the archive: two empty blocks."""
        self._pad(2 * BLOCK)

    def _missing(self, path: str) -> list[str]:
        """Parents that no entry named yet, outermost first."""
        missing: list[str] = []
        while (path := path.rpartition("/")[0]) and (kind := self._kinds.get(path, "")) != "directory":
            if kind:
                raise ImageError(f"a path goes through {path}, which is a {kind}", where=self._title)
            missing.append(path)
        return missing[::-1]

    def _write(self, entry: Entry) -> None:
        self._kinds[entry.path] = entry.kind
        self._pad()
        self.gzip.write(header(entry))
        self._end = self.gzip.size + entry.size

    def _pad(self, more: int = 0) -> None:
        """Fill up the block that the last content ended in."""
        if self.gzip.size != self._end:
            raise ImageError(f"content and size differ by {self.gzip.size - self._end} bytes", where=self._title)
        self.gzip.write(bytes(-self._end % BLOCK + more))


def write_layer(store: Store, title: str, entries: Iterable[tuple[Entry, Content]]) -> Layer:
    """A layer of these entries in this order, each parent before its children; the size of bytes is their length.

    Equal entries give equal bytes on every machine: libdeflate is pinned, and sees pieces of fixed size.
    """

    def fill(archive: Archive) -> None:
        for entry, content in entries:
            archive.add(replace(entry, size=len(content)) if isinstance(content, bytes) else entry)
            if isinstance(content, bytes):
                archive.gzip.write(content)
            elif content is not None:
                _pour(archive, content)

    return layer(store, title, fill)


def layer(
    store: Store, title: str, fill: Callable[[Archive], None], *, known: Layer | None = None, hashed: bool = True
) -> Layer:
    """A layer of what `fill` adds to an archive; nothing is left behind if it raises. HostError if the disk is full.

    With `known`, LayerMismatchError unless it becomes that layer. With `hashed` False its diff_id is taken from there,
    since the blob's digest proves it.
    """
    with store.writer() as blob:
        archive = Archive(blob, title, hashed=hashed)
        fill(archive)
        archive.close()
        archive.gzip.close()
        diff_id = archive.gzip.digest if known is None or hashed else known.diff_id
        descriptor = Descriptor(media_type=LAYER_TYPE, digest=blob.digest, size=blob.size)
        made = Layer(descriptor=descriptor, diff_id=diff_id, unpacked_size=archive.gzip.size, title=title)
        _hold_against(known or made, made)
        blob.commit(LAYER_TYPE)
    return made


def _hold_against(known: Layer, made: Layer) -> None:
    pairs = (
        ("digest", known.descriptor.digest, made.descriptor.digest),
        ("size", known.descriptor.size, made.descriptor.size),
        ("diff_id", known.diff_id, made.diff_id),
        ("unpacked size", known.unpacked_size, made.unpacked_size),
    )
    wrong = [f"{what} {found}, expected {expected}" for what, expected, found in pairs if found != expected]
    if wrong:
        raise LayerMismatchError(f"the layer of {made.title} is not the one that is known: {'; '.join(wrong)}")


def stretch(path: Path, offset: int, size: int) -> BytesIO:
    """Part of a file as content, in memory: bind the arguments with functools.partial to open it when it is written."""
    with path.open("rb") as stream:
        stream.seek(offset)
        return BytesIO(stream.read(size))


def _pour(archive: Archive, content: Callable[[], AbstractContextManager[BinaryIO]]) -> None:
    with content() as stream:
        while piece := stream.read(_READ):
            archive.gzip.write(piece)
