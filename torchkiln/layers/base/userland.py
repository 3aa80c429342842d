"""The tar that mmdebstrap made → the entries of a base layer: nothing of the building host, and our own files over it.

What is left out is made anew by whoever needs it, or belongs to the machine that built: device nodes, logs, locks,
caches, backups, identity. What is written over it is the recipe's `rootfs/`, the user, and stated empty files.
"""

from __future__ import annotations

import re
import tarfile
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Literal

from torchkiln.errors import BaseError
from torchkiln.layers.archive import Entry, order, stretch
from torchkiln.oci.content import tar_of
from torchkiln.specs import LAYER_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from torchkiln.layers.archive import Content
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store

    Entries = dict[str, tuple[Entry, Content]]

LARGEST = 16 << 20
"""Bytes of a package database that is read of a layer that another machine made; ours has a few hundred thousand."""
UID = 1000
"""The user `torch`; its group is 0, so that whatever group 0 may write, it may."""
PASSWD_ROW = f"torch:x:{UID}:0:torch:/home/torch:/bin/bash\n"
SHADOW_ROW = f"torch:*:{LAYER_TIME // 86400}:0:99999:7:::\n"
"""A password nobody has (shadow(5))."""
_FOREIGN = re.compile(
    r"""
    dev/.+ | tmp/.+ | var/tmp/.+                                        # belongs to the running container
    | etc/(passwd|group|shadow|gshadow|subuid|subgid)-                  # backups
    | var/backups/.+ | var/lib/dpkg/[a-z]+-old | var/cache/debconf/.+-old
    | etc/\.pwd\.lock | var/lib/dpkg/lock(-frontend)? | var/lib/dpkg/triggers/Lock
    | etc/apt/(apt\.conf|preferences)\.d/[0-9]+(mmdebstrap|torchkiln-build) | etc/dpkg/dpkg\.cfg\.d/[0-9]+mmdebstrap
    | var/cache/ldconfig/.+ | var/lib/dbus/machine-id | etc/ssh/ssh_host_.+
    """,
    re.VERBOSE,
)
_VOLATILE = re.compile(r"(run|var/log|var/cache/apt|var/lib/apt/lists)/.+")
"""Where folders stay, since programs expect them, but files go: logs, locks, package lists."""
_IDENTITY = ("etc/hostname", "etc/machine-id", "etc/resolv.conf")
"""Empty: engines mount their own over them; an empty machine id is drawn at the first boot (machine-id(5))."""
_PARTIAL = ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial")
"""Root's, not `_apt`'s: who owned them on the builder depends on whether `_apt` may enter the cache folder's parents,
and apt sets owner and mode before each use."""
_SOURCES = "etc/apt/sources.list"
_SOURCE_FILES = re.compile(r"etc/apt/sources\.list(\.d/[^/]+\.(list|sources))?(?P<stock>\.stock)?")
"""Where apt looks (sources.list(5)); `.stock` is what setup.sh set aside for a mirror."""
_STATUS = "var/lib/dpkg/status"
_MARKS = "var/lib/apt/extended_states"
_KEPT = {"required", "important", "standard"}
"""Priorities of what is no package's mere dependency (Debian policy, 2.5)."""
_PYC = re.compile(r"(?P<folder>.*/)__pycache__/(?P<name>[^/]+)\.cpython-\d+(\.opt-\d)?\.pyc")


def read(path: Path, rootfs: Mapping[str, bytes], asked: Collection[str]) -> list[tuple[Entry, Content]]:
    """The entries of a base layer, sorted; contents are read from the tar at `path` when they are written.

    `asked` are the packages that somebody wants, not for others' sake.
    """
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        entries = {entry.path: (entry, _content(path, member, entry)) for member in tar if (entry := _entry(member))}
    _keep_stock_sources(entries)
    _mark_automatic(entries, asked)
    _own_bytecode(entries)
    _add_user(entries)
    for name in _IDENTITY:
        _put(entries, name, b"")
    for name, data in rootfs.items():
        _put(entries, name, data)
    return [entries[name] for name in sorted(entries, key=order)]


def packages(path: Path) -> tuple[tuple[str, str], ...]:
    """(name, version) of what is installed in a tar of our own at `path`, sorted; BaseError without a dpkg status."""
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
        member = next((member for member in tar if member.name.removeprefix("./") == _STATUS), None)
        stream = tar.extractfile(member) if member else None
        if stream is None:
            raise BaseError("there is no package database in the base", where=str(path))
        return installed(stream.read().decode())


def packages_of(store: Store, layer: Layer) -> tuple[tuple[str, str], ...]:
    """The same of a layer that another machine made, read like anyone's; ImageError if it is unsafe."""
    with tar_of(store, layer.descriptor.digest, limit=max(1, layer.unpacked_size)) as tar:
        for entry, data in tar.members():
            if data is not None and entry.name.removeprefix("./") == _STATUS and entry.size <= LARGEST:
                return installed(data.read().decode(errors="replace"))
    raise BaseError("there is no package database in the base", where=layer.descriptor.digest)


def installed(status: str) -> tuple[tuple[str, str], ...]:
    """(name, version) of the installed packages of a dpkg status file (deb822(5)), sorted."""
    named = (fields for fields in _installed(status) if {"Package", "Version"} <= fields.keys())
    return tuple(sorted((fields["Package"], fields["Version"]) for fields in named))


def _installed(status: str) -> Iterator[dict[str, str]]:
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(\w+): (.+)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" ok installed"):
            yield fields


_KINDS: dict[bytes, Literal["directory", "file", "symlink", "hardlink"]] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
}


def _entry(member: tarfile.TarInfo) -> Entry | None:
    """What a layer says about a member of the tar; None for what stays out."""
    path = "" if member.name == "." else member.name.removeprefix("./")
    if not path or _FOREIGN.fullmatch(path) or (_VOLATILE.fullmatch(path) and not member.isdir()):
        return None
    if member.type not in _KINDS:
        raise BaseError(f"a layer can't hold {path}: it is neither file, folder nor link", where="mmdebstrap")
    return Entry(
        path=path,
        kind=_KINDS[member.type],
        mode=member.mode & 0o7777,
        size=member.size if member.isreg() else 0,
        target=member.linkname.removeprefix("./") if member.islnk() else member.linkname,
        uid=0 if path in _PARTIAL else member.uid,
        gid=member.gid,
        xattrs=_xattrs(member.pax_headers),
    )


def _xattrs(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Extended attributes, of which file capabilities are one; tarfile decodes what are bytes."""
    prefix = "SCHILY.xattr."
    return {
        name.removeprefix(prefix): value.encode("utf-8", "surrogateescape")
        for name, value in headers.items()
        if name.startswith(prefix)
    }


def _content(path: Path, member: tarfile.TarInfo, entry: Entry) -> Content:
    """One file of the tar; the largest of a userland is a compiler, so it may be in memory."""
    return partial(stretch, path, member.offset_data, member.size) if entry.kind == "file" else None


def _text(entries: Entries, path: str) -> str:
    content = entries[path][1] if path in entries else b""
    if callable(content):
        with content() as stream:
            return stream.read().decode()
    return (content or b"").decode()


def _put(entries: Entries, path: str, data: bytes, *, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
    """A file of ours; one that is there keeps its owner and mode unless others are stated."""
    entries[path] = (Entry(path=path, kind="file", mode=mode, size=len(data), uid=uid, gid=gid), data)


def _rewrite(entries: Entries, path: str, text: str) -> None:
    """Other content in a file that is there, with its owner and mode."""
    there = entries[path][0]
    _put(entries, path, text.encode(), mode=there.mode, uid=there.uid, gid=there.gid)


def _keep_stock_sources(entries: Entries) -> None:
    """The sources of the suite, not the mirror of this build, nor the host's key ring, which the image has itself.

    One file of lines, whatever form mmdebstrap wrote: newer ones write paragraphs, and hosts must not differ.
    """
    found = {path: match for path in sorted(entries) if (match := _SOURCE_FILES.fullmatch(path))}
    stock = [path for path, match in found.items() if match["stock"]]
    text = "".join(_lines(_text(entries, path)) for path in stock or found)
    for path in found:
        del entries[path]
    _put(entries, _SOURCES, text.encode())


def _lines(text: str) -> str:
    """Sources as one line each, without options."""
    if not re.search(r"^Types:", text, re.MULTILINE):
        return re.sub(r"\[signed-by=\S+\] ", "", text)
    paragraphs = [dict(re.findall(r"^(\S+): (.+)$", paragraph, re.MULTILINE)) for paragraph in text.split("\n\n")]
    return "".join(
        f"{kind} {address} {suite} {fields['Components']}\n"
        for fields in paragraphs
        if fields
        for kind in fields["Types"].split()
        for address in fields["URIs"].split()
        for suite in fields["Suites"].split()
    )


def _mark_automatic(entries: Entries, asked: Collection[str]) -> None:
    """What is there for others' sake may leave with them (apt-mark(8)).

    Said by us, since what apt marks while a root is filled depends on the version that the building host has.
    """
    packages = list(_installed(_text(entries, _STATUS)))
    native = next((fields["Architecture"] for fields in packages if fields["Package"] == "dpkg"), "all")
    rows = sorted(
        (fields["Package"], native if fields["Architecture"] == "all" else fields["Architecture"])
        for fields in packages
        if not (fields["Package"] in asked or fields.get("Essential") == "yes" or fields.get("Priority") in _KEPT)
    )
    marks = "".join(f"Package: {name}\nArchitecture: {arch}\nAuto-Installed: 1\n\n" for name, arch in rows)
    _put(entries, _MARKS, marks.encode())


def _own_bytecode(entries: Entries) -> None:
    """Bytecode of the standard library is held against the layer's time (PEP 552), as that of the wheels is.

    Packages compile it when they are configured; with SOURCE_DATE_EPOCH set they write the checked-hash form, which
    reads and hashes every source at every start.
    """
    for path, (entry, content) in list(entries.items()):
        found = _PYC.fullmatch(path)
        source = entries.get(f"{found['folder']}{found['name']}.py") if found else None
        if source is not None and callable(content):
            entries[path] = (entry, partial(_stamped, content, source[0].size))


def _stamped(compiled: Callable[[], AbstractContextManager[BinaryIO]], size: int) -> AbstractContextManager[BinaryIO]:
    with compiled() as stream:
        data = stream.read()
    stamp = bytes(4) + LAYER_TIME.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")
    return BytesIO(data[:4] + stamp + data[16:])


def _add_user(entries: Entries) -> None:
    """User `torch` with a password nobody has, a home that group 0 shares, and a folder for everybody's work."""
    _rewrite(entries, "etc/passwd", _text(entries, "etc/passwd") + PASSWD_ROW)
    if "etc/shadow" in entries:  # made by the package passwd, which not every suite brings by itself
        _rewrite(entries, "etc/shadow", _text(entries, "etc/shadow") + SHADOW_ROW)
    entries["home/torch"] = (Entry(path="home/torch", kind="directory", mode=0o775, uid=UID), None)
    entries["workspace"] = (Entry(path="workspace", kind="directory", mode=0o1777), None)
    for name in (".bash_logout", ".bashrc", ".profile"):
        data = _text(entries, f"etc/skel/{name}").encode()
        _put(entries, f"home/torch/{name}", data, mode=0o664, uid=UID)
