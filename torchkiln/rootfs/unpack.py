"""Unpack one layer into a folder of its own, once, verified by its diff_id."""

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
from typing import IO, TYPE_CHECKING

from torchkiln.errors import HostError, ImageError
from torchkiln.oci import content
from torchkiln.oci import digest as digests
from torchkiln.rootfs import folder as folders

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Mapping

    from torchkiln.home import Home
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store

TREE = "tree"
NOTES = "layer.json"
Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What a layer says that a plain folder cannot hold."""

    removed: tuple[Path_, ...] = ()
    """Paths of lower layers that are gone (layer.md, Whiteouts)."""
    opaque: tuple[Path_, ...] = ()
    """Folders that hide everything below them in lower layers."""
    implied: tuple[Path_, ...] = ()
    """Folders that no entry describes: a lower layer's mode and owner stay."""


@dataclass(slots=True)
class _Work:
    """One layer on its way to disk."""

    root: int
    owners: bool
    """Whether this user may give files away and set privileged attributes."""
    removed: list[Path_] = field(default_factory=list)
    opaque: list[Path_] = field(default_factory=list)
    implied: set[Path_] = field(default_factory=lambda: {()})
    folders: dict[Path_, tarfile.TarInfo] = field(default_factory=dict)
    parent: tuple[Path_, int] | None = None
    """The last parent, kept open: neighbours in a tar share it."""

    def within(self, path: Path_) -> int:
        if self.parent is None or self.parent[0] != path:
            handle = folders.descend(self.root, path, self.implied.add)
            self.forget()
            self.parent = (path, handle)
        return self.parent[1]

    def forget(self) -> None:
        if self.parent is not None:
            os.close(self.parent[1])
        self.parent = None


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
                f"layer {layer.diff_id} cannot be unpacked: {error.strerror}",
                where=str(error.filename or home.rootfs),
                remedy="free disk space or set TORCHKILN_HOME to another disk",
            ) from error

    return once(home, home.rootfs / "layers" / name, f"layer-{name}", write) / TREE


def notes(tree: Path) -> Notes:
    """What an unpacked layer says beyond its files."""
    document = json.loads((tree.parent / NOTES).read_bytes())
    return Notes(**{name: tuple(tuple(path) for path in paths) for name, paths in document.items()})


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
    with folders.opened(tree) as root, content.tar_of(store, layer.descriptor.digest, limit=layer.unpacked_size) as tar:
        work = _Work(root=root, owners=os.geteuid() == 0)
        try:
            for member, data in tar.members():
                _add(work, member, data)
        finally:
            work.forget()
        found = tar.finish()
        if found != layer.diff_id:
            raise ImageError(
                f"layer {layer.descriptor.digest} holds another tar: {found}, not {layer.diff_id}",
                where=str(store.root),
                remedy="delete the blob and build or fetch it again",
            )
        _finish(work)
    said = {"removed": work.removed, "opaque": work.opaque, "implied": sorted(work.implied)}
    (target / NOTES).write_text(json.dumps(said))


def _add(work: _Work, member: tarfile.TarInfo, data: IO[bytes] | None) -> None:
    path = content.parts(member.name)
    if not path:
        if member.isdir():
            work.folders[()] = member
            work.implied.discard(())
        return
    *parents, name = path
    parent = work.within(tuple(parents))
    if name.startswith(content.WHITEOUT):
        _whiteout(work, tuple(parents), name)
    elif member.isdir():
        folders.make_folder(name, parent)
        work.folders[path] = member
        work.implied.discard(path)
    elif data is not None or member.issym() or member.islnk() or member.isfifo():
        if folders.discard(name, parent):  # a later entry of the same name stands
            work.forget()
            parent = work.within(tuple(parents))
        _make(work, member, data, name, parent)
    # Device nodes are left out: the engine supplies /dev.


def _whiteout(work: _Work, parents: Path_, name: str) -> None:
    if name == content.OPAQUE:
        work.opaque.append(parents)
    elif not name.startswith(".wh..wh."):  # other names with that start are notes of AUFS
        work.removed.append((*parents, name.removeprefix(content.WHITEOUT)))


def _make(work: _Work, member: tarfile.TarInfo, data: IO[bytes] | None, name: str, parent: int) -> None:
    if member.islnk():
        _hard_link(work, member, name, parent)
    elif member.issym():
        os.symlink(member.linkname, name, dir_fd=parent)
        if work.owners:
            os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
        os.utime(name, ns=_times(member), dir_fd=parent, follow_symlinks=False)
    elif data is not None:
        if member.issparse():
            raise ImageError(f"a sparse file: {member.name[:200]!r}")  # layer.md forbids them
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        with open(handle, "wb", buffering=0) as file:  # noqa: PTH123  a descriptor, not a path
            shutil.copyfileobj(data, file, digests.CHUNK)
            _describe(work, member, handle)
    else:
        os.mkfifo(name, dir_fd=parent)
        os.utime(name, ns=_times(member), dir_fd=parent, follow_symlinks=False)


def _hard_link(work: _Work, member: tarfile.TarInfo, name: str, parent: int) -> None:
    *parents, target = content.parts(member.linkname) or ("",)
    try:
        source = folders.descend(work.root, tuple(parents))
        try:
            os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)
    except (FileNotFoundError, PermissionError) as error:  # EPERM: the target is a folder
        raise ImageError(f"hard link {member.name[:200]!r} to {member.linkname[:200]!r}, not in the layer") from error


def _times(member: tarfile.TarInfo) -> tuple[int, int]:
    """Exact: bytecode is valid only for the very time of its source; tarfile's float would round nanoseconds."""
    whole, _, fraction = member.pax_headers.get("mtime", str(int(member.mtime))).partition(".")
    moment = int(whole) * 10**9 + int((fraction + "0" * 9)[:9])
    return moment, moment


def _describe(work: _Work, member: tarfile.TarInfo, handle: int) -> None:
    """Owner, mode, attributes, time; in this order, since chown clears setuid bits and capabilities."""
    if work.owners:
        os.fchown(handle, member.uid, member.gid)
    reachable = stat.S_IRWXU if member.isdir() and not work.owners else 0  # to merge and delete it without privilege
    os.fchmod(handle, member.mode & 0o7777 | reachable)
    for name, value in _attributes(member.pax_headers, privileged=work.owners).items():
        try:
            os.setxattr(handle, name, value)
        except OSError as error:
            if error.errno != errno.ENOTSUP:  # a file system without them
                raise
    os.utime(handle, ns=_times(member))


def _attributes(headers: Mapping[str, str], *, privileged: bool) -> dict[str, bytes]:
    """Extended attributes that programs use; never those by which overlayfs steers itself."""
    found = {}
    for header, value in headers.items():
        name = header.removeprefix("SCHILY.xattr.")
        user = name.startswith("user.") and not name.startswith("user.overlay.")
        if name != header and (user or (privileged and name == "security.capability")):
            found[name] = value.encode("utf-8", "surrogateescape")
    return found


def _finish(work: _Work) -> None:
    """Folders last, deepest first: writing into one changes its time, and may need a mode it will not keep."""
    for path in sorted({*work.folders, *work.implied}, key=len, reverse=True):
        try:
            handle = folders.descend(work.root, path)
        except (FileNotFoundError, ImageError):
            continue  # a later entry replaced it
        try:
            if path in work.folders:
                _describe(work, work.folders[path], handle)
            else:
                os.fchmod(handle, 0o755)
        finally:
            os.close(handle)
