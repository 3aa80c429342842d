"""What a layer holds, read from its tar in one pass: names, modes, kinds, and the little content that checks ask about.

Layers are read rather than an unpacked tree: only they keep owners and set-uid bits where the builder is not root,
and what a later layer deletes is still in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torchkiln.inspect.secrets import found_in
from torchkiln.oci.content import OPAQUE, WHITEOUT, TarReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from torchkiln.oci import tar

Kind = Literal["file", "folder", "symlink", "hardlink", "other"]
_KINDS: Mapping[tar.Kind, Kind] = {
    "file": "file",
    "folder": "folder",
    "symlink": "symlink",
    "link": "hardlink",
    "fifo": "other",
    "device": "other",
}

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
    """Read an uncompressed tar to its end; ImageError if it is none, or larger in names than any layer."""
    entries, versions, secrets = [], {}, []
    for member, data in TarReader(stream).members():
        path = member.name.removeprefix("./").strip("/")
        head, whole = _content(member, data, path)
        entries.append(_entry(member, path, head))
        secrets += [(path, what) for what in found_in(path, whole)]
        if METADATA.search(path):
            versions[path] = _name_and_version(whole)
    return Contents(entries=tuple(entries), versions=versions, secrets=tuple(secrets))


def merge(layers: Iterable[Contents]) -> dict[str, Entry]:
    """The file system that layers make together, lowest first (layer.md, "Applying Changesets")."""
    tree: dict[str, Entry] = {}
    for layer in layers:
        _hide(tree, layer)
        tree |= {entry.path: entry for entry in layer.entries if not _name(entry).startswith(WHITEOUT)}
    return tree


def _hide(tree: dict[str, Entry], layer: Contents) -> None:
    """Take away what a layer hides of those below it, never its own files, wherever in it the whiteouts stand.

    Hidden are what a whiteout names, what is in an opaque folder, and what was in a folder that is none any more.
    """
    gone, emptied = set(), set()
    for entry in layer.entries:
        folder, _, name = entry.path.rpartition("/")
        if name == OPAQUE:
            emptied.add(folder)
        elif name.startswith(WHITEOUT):
            gone.add(f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/"))
        elif entry.kind != "folder" and entry.path in tree:
            gone.add(entry.path)
    hiding = gone | emptied
    if hiding:
        for path in [path for path in tree if path in gone or any(parent in hiding for parent in _parents(path))]:
            del tree[path]


def _parents(path: str) -> Iterator[str]:
    """The folders that a path is in, the root too."""
    yield ""
    yield from (path[:place] for place, mark in enumerate(path) if mark == "/")


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]


def _entry(member: tar.Entry, path: str, head: bytes) -> Entry:
    return Entry(path, _KINDS[member.kind], member.mode, member.size, member.target, elf_machine(head))


def _content(member: tar.Entry, data: tar.Content | None, path: str) -> tuple[bytes, bytes]:
    """The first bytes of programs and libraries; the whole of small files that no wheel pinned, and of METADATA."""
    if data is None:
        return b"", b""
    asked = METADATA.search(path) or not WHEEL_FILE.search(path) or path.endswith("direct_url.json")
    program = member.mode & 0o111 or ".so" in path.rpartition("/")[2]
    if asked:
        content = data.read(READ_WHOLE)
        return content[:HEAD], content
    return (data.read(HEAD) if program else b""), b""


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
