"""Unpack one layer into a folder of its own, once, verified by its diff_id; it may be anyone's, and is not trusted."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchkiln.errors import HostError, ImageError
from torchkiln.oci import content
from torchkiln.oci import digest as digests
from torchkiln.rootfs import folder as folders
from torchkiln.rootfs.entry import describe, make
from torchkiln.rootfs.once import once

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store
    from torchkiln.oci.tar import Content, Entry

TREE = "tree"
NOTES = "layer.json"
FOLDER = "layers-2"
"""Below `home.rootfs`; the number is of the form: no other version finds, or replaces, what is in use."""
Path_ = tuple[str, ...]
MOST_ENTRIES = 1_000_000
"""Of one layer, with the folders that no entry describes: several times as many as any layer we know has."""
MOST_NAMES = 64 << 20
"""Characters of the paths of a layer's folders and whiteouts together, which are kept in memory."""
UNDESCRIBED = (0o755, 315619200 * 10**9)
"""Mode and time of a folder that no entry describes: the time of our own layers."""
ITS_OWN_FAULT = frozenset({
    errno.E2BIG, errno.EINVAL, errno.ELOOP, errno.EMLINK, errno.ENAMETOOLONG, errno.EOVERFLOW, errno.ERANGE,
})  # fmt: skip
"""What the kernel says of names, links and attributes that no file system has; anything else is this machine's."""
AUFS = ".wh..wh."


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What a layer says that a plain folder cannot hold; paths are relative, the root's is empty."""

    removed: tuple[str, ...] = ()
    """Paths of lower layers that are gone (layer.md, Whiteouts)."""
    opaque: tuple[str, ...] = ()
    """Folders that hide everything below them in lower layers."""
    implied: tuple[str, ...] = ()
    """Folders that no entry describes: a lower layer's mode and owner stay."""


@dataclass(slots=True)
class _Work:
    """One layer on its way to disk."""

    place: folders.Cursor
    owners: bool
    """Whether this user may give files away and set privileged attributes."""
    removed: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    folders: dict[str, Entry | None] = field(default_factory=lambda: {"": None})
    """What was last said of each; None where nothing was."""
    entries: int = 0
    names: int = 0

    def within(self, path: Path_) -> int:
        """A folder, made at need."""
        return self.place.move(path, self.imply)

    def imply(self, path: Path_) -> None:
        """Note a folder that has to be made for what is in it."""
        self.count()
        self.folders[self.named(path)] = None

    def count(self) -> None:
        """One more thing to make; ImageError beyond the bound."""
        self.entries += 1
        if self.entries > MOST_ENTRIES:
            raise ImageError(f"more than {MOST_ENTRIES} entries")

    def named(self, path: Path_) -> str:
        """The path in one piece, to be kept; ImageError beyond the bound."""
        name = "/".join(path)
        self.names += len(name)
        if self.names > MOST_NAMES:
            raise ImageError(f"paths of folders longer than {MOST_NAMES} bytes together")
        return name


def unpack(home: Home, store: Store, layer: Layer) -> Path:
    """The folder with the files of one layer, made once.

    ImageError if its tar is unsafe or not the one that `diff_id` names; HostError if it cannot be written.
    """
    name = digests.encoded(layer.diff_id)

    def write(target: Path) -> None:
        try:
            _write(target, store, layer)
        except OSError as error:
            raise HostError(
                f"layer {layer.diff_id} cannot be unpacked: {error.strerror} {error.filename or ''}".rstrip(),
                where=str(home.rootfs),
                remedy="free disk space or set TORCHKILN_HOME to another disk",
            ) from error

    return once(home, home.rootfs / FOLDER / name, f"layer-{name}", write) / TREE


def notes(tree: Path) -> Notes:
    """What an unpacked layer says beyond its files."""
    document = json.loads((tree.parent / NOTES).read_bytes())
    return Notes(**{name: tuple(paths) for name, paths in document.items()})


def _write(target: Path, store: Store, layer: Layer) -> None:
    tree = target / TREE
    tree.mkdir(mode=0o755)
    limit = max(1, layer.unpacked_size)  # 0 would mean none
    with (
        folders.opened(tree) as root,
        folders.cursor(root) as place,
        content.tar_of(store, layer.descriptor.digest, limit=limit) as tar,
    ):
        work = _Work(place=place, owners=os.geteuid() == 0)
        for entry, data in tar.members():
            if entry.size > limit:
                raise ImageError(f"{entry.name[:200]!r} has {entry.size} bytes, the whole layer {limit}")
            _add(work, entry, data)
        found = tar.finish()
        if found != layer.diff_id:
            raise ImageError(
                f"layer {layer.descriptor.digest} holds another tar: {found}, not {layer.diff_id}",
                where=str(store.root),
                remedy="delete the blob and build or fetch it again",
            )
        _finish(work)
    implied = sorted(path for path, entry in work.folders.items() if entry is None)
    said = {"removed": sorted(work.removed), "opaque": sorted(work.opaque), "implied": implied}
    (target / NOTES).write_text(json.dumps(said))


def _add(work: _Work, entry: Entry, data: Content | None) -> None:
    try:
        work.count()
        _place(work, entry, data, content.parts(entry.name))
    except ImageError as error:
        raise ImageError(f"{entry.kind} {entry.name[:200]!r}: {error.what}", remedy=error.remedy) from error
    except OSError as error:
        if error.errno not in ITS_OWN_FAULT:
            raise
        raise ImageError(f"{entry.kind} {entry.name[:200]!r} cannot be made: {error.strerror}") from error


def _place(work: _Work, entry: Entry, data: Content | None, path: Path_) -> None:
    if not path:
        if entry.kind != "folder":
            raise ImageError("the root is a folder")
        work.folders[""] = entry
        return
    *above, name = path
    parents = tuple(above)
    if content.WHITEOUT in entry.name and any(part.startswith(content.WHITEOUT) for part in path):
        _whiteout(work, parents, name)
        return
    parent = work.within(parents)
    if entry.kind == "folder":
        folders.make_folder(name, parent)
        work.folders[work.named(path)] = entry
    elif entry.kind == "device":  # the engine supplies /dev; what had this name is gone nevertheless
        folders.discard(name, parent)
        work.removed.append(work.named(path))
    else:
        try:
            make(entry, data, name, parent, work.place, owners=work.owners)
        except FileExistsError:  # a later entry of the same name stands
            parent = work.within(parents)
            folders.discard(name, parent)
            make(entry, data, name, parent, work.place, owners=work.owners)


def _whiteout(work: _Work, parents: Path_, name: str) -> None:
    """Note what lower layers lose (layer.md, Whiteouts); the name of a whiteout itself is never made."""
    if any(part.startswith(AUFS) for part in (*parents, name)) and name != content.OPAQUE:
        return  # notes of AUFS to itself
    hidden = name.removeprefix(content.WHITEOUT)
    if any(part.startswith(content.WHITEOUT) for part in parents) or hidden in {"", ".", "..", name}:
        raise ImageError("a whiteout of nothing that has a name")
    work.within(parents)
    if name == content.OPAQUE:
        work.opaque.append(work.named(parents))
    else:
        work.removed.append(work.named((*parents, hidden)))


def _finish(work: _Work) -> None:
    """Folders last, deepest first: writing into one changes its time, and may need a mode it will not keep."""
    for path in sorted(work.folders, reverse=True):
        try:
            handle = work.place.move(tuple(path.split("/")) if path else ())
        except (FileNotFoundError, ImageError):
            continue  # a later entry replaced it
        entry = work.folders[path]
        if entry is not None:
            describe(entry, handle, owners=work.owners)
        else:
            mode, moment = UNDESCRIBED
            folders.describe(handle, mode=mode, mtime_ns=moment)
