"""One entry of a layer becomes a file, link or pipe beside others that have been made so."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from torchkiln.errors import ImageError
from torchkiln.oci import content
from torchkiln.rootfs import folder as folders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.oci.tar import Content, Entry
    from torchkiln.rootfs.folder import Cursor

MOST_ATTRIBUTE = 64 << 10
"""Bytes of an extended attribute (xattr(7), Filesystem differences)."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make(entry: Entry, data: Content | None, name: str, parent: int, place: Cursor, *, owners: bool) -> None:
    """A file, a link of either kind, or a pipe; FileExistsError if there is something of that name.

    `place` is moved to find the target of a hard link. With `owners` this user may give files away and set privileged
    attributes.
    """
    if data is not None:
        handle = os.open(name, NEW, 0o600, dir_fd=parent)
        try:
            _fill(handle, data)
            describe(entry, handle, owners=owners)
        finally:
            os.close(handle)
    elif entry.kind == "symlink":
        _symlink(entry, name, parent, owners=owners)
    elif entry.kind == "link":
        _hard_link(entry, name, parent, place)
    else:
        os.mkfifo(name, 0o600, dir_fd=parent)
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            describe(entry, handle, owners=owners)
        finally:
            os.close(handle)


def _fill(handle: int, data: Content) -> None:
    for piece in data.pieces():
        left = piece
        while left:
            left = left[os.write(handle, left) :]


def _symlink(entry: Entry, name: str, parent: int, *, owners: bool) -> None:
    if not entry.target:
        raise ImageError("a link to nothing")
    os.symlink(entry.target, name, dir_fd=parent)
    if owners:
        os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
    os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)


def _hard_link(entry: Entry, name: str, parent: int, place: Cursor) -> None:
    """Another name for what this layer has already, be it a link; its own folder is held open meanwhile."""
    *above, target = content.parts(entry.target) or ("",)
    beside = os.dup(parent)
    try:
        source = place.move(tuple(above))
        os.link(target, name, src_dir_fd=source, dst_dir_fd=beside, follow_symlinks=False)
    except (FileNotFoundError, PermissionError) as error:  # EPERM: the target is a folder
        raise ImageError(f"a hard link to {entry.target[:200]!r}, which is no file of the layer") from error
    finally:
        os.close(beside)


def describe(entry: Entry, handle: int, *, owners: bool) -> None:
    """Give an open file, pipe or folder what its entry says of it."""
    owner = (entry.uid, entry.gid) if owners else None
    reachable = stat.S_IRWXU if entry.kind == "folder" and not owners else 0  # to merge and delete it
    attributes = _attributes(entry.headers, privileged=owners) if entry.headers and entry.kind != "fifo" else {}
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
