"""What a layer holds, read from its tar in one pass: names, modes, kinds, and the little content that checks ask about.

Layers are read rather than an unpacked tree: only they keep owners and set-uid bits where the builder is not root,
and what a later layer deletes is still in them.
"""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torchkiln.inspect.secrets import found_in
from torchkiln.oci.content import OPAQUE, WHITEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import BinaryIO

Kind = Literal["file", "folder", "symlink", "hardlink", "other"]

ELF_MAGIC = b"\x7fELF"
ELF_MACHINES = {
    3: "i386",
    21: "ppc64",
    22: "s390",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    190: "CUDA",
    224: "AMD GPU",
    243: "riscv",
    247: "BPF",
}
"""e_machine (ELF-64 object file format); offset 18, two bytes, here little-endian as on every Linux we build for."""
HEAD = 20
READ_WHOLE = 64 << 10
METADATA = re.compile(r"site-packages/[^/]+\.dist-info/METADATA")
WHEEL_FILE = re.compile(r"(?:^|/)site-packages/")
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a layer's tar; paths have no leading or trailing slash."""

    path: str
    kind: Kind
    mode: int
    size: int
    link: str = ""
    elf: str = ""
    """Machine of an executable or shared object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A layer's members in tar order, and what was read of them."""

    entries: tuple[Entry, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    """METADATA path → `name version`."""
    secrets: tuple[tuple[str, str], ...] = ()
    """(path, what it looks like)."""

    def to_json(self) -> dict[str, Any]:
        """For the cache."""
        rows = [[entry.path, entry.kind, entry.mode, entry.size, entry.link, entry.elf] for entry in self.entries]
        return {"entries": rows, "versions": dict(self.versions), "secrets": [list(pair) for pair in self.secrets]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Contents:
        """The inverse of `to_json`."""
        return Contents(
            entries=tuple(Entry(*row) for row in data["entries"]),
            versions=data["versions"],
            secrets=tuple((path, what) for path, what in data["secrets"]),
        )


def read(stream: BinaryIO) -> Contents:
    """Read an uncompressed tar to its end."""
    entries, versions, secrets = [], {}, []
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
        for member in tar:
            path = member.name.removeprefix("./").strip("/")
            head, whole = _content(tar, member, path)
            entries.append(_entry(member, path, head))
            secrets += [(path, what) for what in found_in(path, whole)]
            if METADATA.search(path):
                versions[path] = _name_and_version(whole)
    return Contents(entries=tuple(entries), versions=versions, secrets=tuple(secrets))


def merge(layers: Iterable[Contents]) -> dict[str, Entry]:
    """The file system that layers make together, lowest first (image-spec layer.md, "Whiteouts")."""
    tree: dict[str, Entry] = {}
    for layer in layers:
        for entry in layer.entries:
            _apply(tree, entry)
    return tree


def _apply(tree: dict[str, Entry], entry: Entry) -> None:
    folder, _, name = entry.path.rpartition("/")
    if name == OPAQUE:
        _remove_below(tree, folder)
    elif name.startswith(WHITEOUT):
        gone = f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/")
        _remove_below(tree, gone)
        tree.pop(gone, None)
    else:
        before = tree.get(entry.path)
        if before and before.kind == "folder" and entry.kind != "folder":
            _remove_below(tree, entry.path)
        tree[entry.path] = entry


def _remove_below(tree: dict[str, Entry], folder: str) -> None:
    prefix = f"{folder}/" if folder else ""
    for path in [path for path in tree if path.startswith(prefix)]:
        del tree[path]


def _entry(member: tarfile.TarInfo, path: str, head: bytes) -> Entry:
    kinds: tuple[tuple[bool, Kind], ...] = (
        (member.isreg(), "file"),
        (member.isdir(), "folder"),
        (member.issym(), "symlink"),
        (member.islnk(), "hardlink"),
    )
    kind: Kind = next((kind for is_one, kind in kinds if is_one), "other")
    return Entry(path, kind, member.mode & 0o7777, member.size, member.linkname, elf_machine(head))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> tuple[bytes, bytes]:
    """The first bytes of programs and libraries; the whole of small files that no wheel pinned, and of METADATA."""
    if not member.isreg():
        return b"", b""
    asked = METADATA.search(path) or not WHEEL_FILE.search(path) or path.endswith("direct_url.json")
    program = member.mode & 0o111 or ".so" in path.rpartition("/")[2]
    stream = tar.extractfile(member) if asked or program else None
    if stream is None:
        return b"", b""
    if asked:
        content = stream.read(READ_WHOLE)
        return content[:HEAD], content
    return stream.read(HEAD), b""


def elf_machine(head: bytes) -> str:
    """The machine an ELF file is for, empty for another file."""
    if not head.startswith(ELF_MAGIC) or len(head) < HEAD:
        return ""
    number = int.from_bytes(head[18:20], "little")
    return ELF_MACHINES.get(number, f"machine {number}")


def _name_and_version(metadata: bytes) -> str:
    """From the core metadata's headers."""
    headers = metadata.partition(b"\n\n")[0].decode("utf-8", "replace").splitlines()
    fields = dict(line.split(": ", 1) for line in headers if ": " in line and not line.startswith((" ", "\t")))
    return f"{fields.get('Name', '?')} {fields.get('Version', '?')}"
