"""Unpack one layer into a folder of its own, once, verified by its diff_id; it may be anyone's, and is not trusted."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.errors import HostError, ImageError
from torchkiln.oci import content
from torchkiln.oci import digest as digests
from torchkiln.rootfs import folder as folders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
MOST_ATTRIBUTE = 64 << 10
"""Bytes of an extended attribute (xattr(7), Filesystem differences)."""
UNDESCRIBED = (0o755, 315619200 * 10**9)
"""Mode and time of a folder that no entry describes: the time of our own layers."""
ITS_OWN_FAULT = frozenset({
    errno.E2BIG, errno.EINVAL, errno.ELOOP, errno.EMLINK, errno.ENAMETOOLONG, errno.EOVERFLOW, errno.ERANGE,
})  # fmt: skip
"""What the kernel says of names, links and attributes that no file system has; anything else is this machine's."""
AUFS = ".wh..wh."
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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


def once(home: Home, folder: Path, lock: str, write: Callable[[Path], None]) -> Path:
    """Make a folder by `write` unless it is there as a whole: written beside and renamed, one process at a time.

    Data is not flushed, which would cost more than unpacking again: a folder of an earlier boot of this machine,
    where a power cut may have lost data, is made anew.
    """
    if _whole(folder):
        return folder
    with home.lock(lock):
        if _whole(folder):
            return folder
        remove(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.parent.chmod(0o700)  # it holds setuid programs of images
        home.temporary.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="rootfs-", dir=home.temporary))
        try:
            write(work)
            (work / "boot").write_text(_boot())
            work.rename(folder)
        except BaseException:
            remove(work)
            raise
    return folder


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _whole(folder: Path) -> bool:
    try:
        return (folder / "boot").read_text() == _boot()
    except FileNotFoundError:
        return False


def remove(folder: Path) -> None:
    """Delete an unpacked or merged tree, if it is there."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


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
            _make(work, entry, data, name, parent)
        except FileExistsError:  # a later entry of the same name stands
            parent = work.within(parents)
            folders.discard(name, parent)
            _make(work, entry, data, name, parent)


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


def _make(work: _Work, entry: Entry, data: Content | None, name: str, parent: int) -> None:
    if data is not None:
        handle = os.open(name, NEW, 0o600, dir_fd=parent)
        try:
            _fill(handle, data)
            _describe(work, entry, handle)
        finally:
            os.close(handle)
    elif entry.kind == "symlink":
        _symlink(work, entry, name, parent)
    elif entry.kind == "link":
        _hard_link(work, entry, name, parent)
    else:
        os.mkfifo(name, 0o600, dir_fd=parent)
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            _describe(work, entry, handle)
        finally:
            os.close(handle)


def _fill(handle: int, data: Content) -> None:
    for piece in data.pieces():
        left = piece
        while left:
            left = left[os.write(handle, left) :]


def _symlink(work: _Work, entry: Entry, name: str, parent: int) -> None:
    if not entry.target:
        raise ImageError("a link to nothing")
    os.symlink(entry.target, name, dir_fd=parent)
    if work.owners:
        os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
    os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)


def _hard_link(work: _Work, entry: Entry, name: str, parent: int) -> None:
    """Another name for what this layer has already, be it a link; its own folder is held open meanwhile."""
    *above, target = content.parts(entry.target) or ("",)
    beside = os.dup(parent)
    try:
        source = work.place.move(tuple(above))
        os.link(target, name, src_dir_fd=source, dst_dir_fd=beside, follow_symlinks=False)
    except (FileNotFoundError, PermissionError) as error:  # EPERM: the target is a folder
        raise ImageError(f"a hard link to {entry.target[:200]!r}, which is no file of the layer") from error
    finally:
        os.close(beside)


def _describe(work: _Work, entry: Entry, handle: int) -> None:
    owner = (entry.uid, entry.gid) if work.owners else None
    reachable = stat.S_IRWXU if entry.kind == "folder" and not work.owners else 0  # to merge and delete it
    attributes = _attributes(entry.headers, privileged=work.owners) if entry.headers and entry.kind != "fifo" else {}
    folders.describe(handle, owner=owner, mode=entry.mode | reachable, mtime_ns=entry.mtime_ns, attributes=attributes)


def _attributes(headers: Mapping[str, str], *, privileged: bool) -> dict[str, bytes]:
    """Extended attributes that programs use; never those by which overlayfs steers itself."""
    found = {}
    for header, value in headers.items():
        name = header.removeprefix("SCHILY.xattr.")
        user = name.startswith("user.") and not name.startswith("user.overlay.")
        if name != header and (user or (privileged and name == "security.capability")):
            found[name] = value.encode("utf-8", "surrogateescape")
            if len(found[name]) > MOST_ATTRIBUTE or "\0" in name:
                raise ImageError(f"an attribute that no file has: {name[:200]!r}")
    return found


def _finish(work: _Work) -> None:
    """Folders last, deepest first: writing into one changes its time, and may need a mode it will not keep."""
    for path in sorted((tuple(path.split("/")) if path else () for path in work.folders), reverse=True):
        try:
            handle = work.place.move(path)
        except (FileNotFoundError, ImageError):
            continue  # a later entry replaced it
        entry = work.folders["/".join(path)]
        if entry is not None:
            _describe(work, entry, handle)
        else:
            mode, moment = UNDESCRIBED
            folders.describe(handle, mode=mode, mtime_ns=moment)
