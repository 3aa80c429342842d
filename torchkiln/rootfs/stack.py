"""Merge the unpacked layers of an image into one tree of hard links (layer.md, "Applying Changesets")."""

from __future__ import annotations

import hashlib
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchkiln.errors import HostError, ImageError
from torchkiln.oci.content import DEEPEST
from torchkiln.rootfs import folder as folders
from torchkiln.rootfs import unpack as layers
from torchkiln.rootfs.once import once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.oci.image import Image, Layer
    from torchkiln.oci.store import Store

FOLDER = "stacks-2"
"""Below `home.rootfs`, as for layers."""
MOST_WORKERS = 16
"""Inflating, hashing and writing release the interpreter's lock."""
OPEN = DEEPEST + 10
"""Descriptors that a worker may need: a folder and all above it, and what it reads and writes."""
OTHERS = 128
"""Descriptors of everything else."""


def merge(home: Home, store: Store, stack: Sequence[Layer]) -> Path:
    """One tree with what a container of these layers, lowest first, would see; made once per stack.

    ImageError as `unpack`; HostError if the file system has no room or no hard links.
    """
    name = hashlib.sha256(" ".join(layer.diff_id for layer in stack).encode()).hexdigest()

    def write(target: Path) -> None:
        trees = _unpack_all(home, store, stack)
        try:
            _merge(target / layers.TREE, trees)
        except OSError as error:
            raise HostError(
                f"{len(stack)} layers cannot be merged: {error.strerror} {error.filename or ''}".rstrip(),
                where=str(home.rootfs),
                remedy="./inv gc, or set TORCHKILN_HOME to a file system with hard links and free space",
            ) from error

    return once(home, home.rootfs / FOLDER / name, f"stack-{name}", write) / layers.TREE


@contextmanager
def tree(home: Home, store: Store, image: Image) -> Iterator[Path]:
    """The merged tree of an image, kept from `gc` while it is in use."""
    with home.lock("use", shared=True):
        yield merge(home, store, image.layers)


def _unpack_all(home: Home, store: Store, stack: Sequence[Layer]) -> list[Path]:
    """Largest first, so that no worker begins with it last."""
    distinct = {layer.diff_id: layer for layer in sorted(stack, key=lambda layer: -layer.unpacked_size)}
    with ThreadPoolExecutor(_workers(min(len(os.sched_getaffinity(0)), len(distinct) or 1, MOST_WORKERS))) as pool:
        found = dict(
            zip(distinct, pool.map(lambda layer: layers.unpack(home, store, layer), distinct.values()), strict=True)
        )
    return [found[layer.diff_id] for layer in stack]


def _workers(wanted: int) -> int:
    """So many as may all be in a deepest folder; the limit is raised at need, as Go's programs do, so most often all.

    To merge takes as much as two.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OTHERS + OPEN * max(wanted, 2)
    if soft < needed:
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, (soft - OTHERS) // OPEN))


def _merge(target: Path, trees: Sequence[Path]) -> None:
    target.mkdir(mode=0o755)
    with folders.opened(target) as root:
        for number, source in enumerate(trees):
            notes = layers.notes(source)
            _hide(root, notes)
            with folders.opened(source) as top:
                _add(top, root, "", frozenset(notes.implied), new=not number)


def _hide(root: int, notes: layers.Notes) -> None:
    """Remove what this layer hides, before anything of its own is there."""
    with folders.cursor(root) as place:
        for path in notes.opaque:
            with _kept(place, _parts(path)) as handle:
                if handle is not None:
                    for name in os.listdir(handle):  # noqa: PTH208  a descriptor, not a path
                        folders.discard(name, handle)
        for path in notes.removed:
            *above, name = _parts(path)
            with _kept(place, tuple(above)) as handle:
                if handle is not None:
                    folders.discard(name, handle)


def _parts(path: str) -> layers.Path_:
    return tuple(path.split("/")) if path else ()


@contextmanager
def _kept(place: folders.Cursor, path: layers.Path_) -> Iterator[int | None]:
    """A folder of the lower layers, whose time stays; None if there is none, or only through a link."""
    try:
        handle = place.move(path)
    except (FileNotFoundError, ImageError):
        yield None
        return
    moment = os.fstat(handle).st_mtime_ns
    yield handle
    os.utime(handle, ns=(moment, moment))


def _add(source: int, target: int, path: str, implied: frozenset[str], *, new: bool) -> None:
    """Link a folder's files, descend into its folders, and describe it; a folder hides a link of a lower layer."""
    about = os.fstat(target if path in implied and not new else source)
    with os.scandir(source) as listed:
        entries = list(listed)  # what lists them holds a descriptor
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            _link(entry.name, source, target)
            continue
        made = folders.make_folder(entry.name, target)
        below = os.open(entry.name, folders.FOLDER, dir_fd=source)
        beside = os.open(entry.name, folders.FOLDER, dir_fd=target)
        try:
            _add(below, beside, f"{path}/{entry.name}" if path else entry.name, implied, new=made)
        finally:
            os.close(below)
            os.close(beside)
    owner = (about.st_uid, about.st_gid) if os.geteuid() == 0 else None
    folders.describe(target, owner=owner, mode=about.st_mode & 0o7777, mtime_ns=about.st_mtime_ns)


def _link(name: str, source: int, target: int) -> None:
    try:
        os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except FileExistsError:
        folders.discard(name, target)
        os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
