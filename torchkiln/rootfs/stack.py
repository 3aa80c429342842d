"""Merge the unpacked layers of an image into one tree of hard links (layer.md, "Applying Changesets")."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import HostError, ImageError
from torchkiln.rootfs import folder as folders
from torchkiln.rootfs import unpack as layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.oci.image import Image, Layer
    from torchkiln.oci.store import Store

WORKERS = 4
"""Inflating, hashing and writing leave the interpreter free; more workers than this wait for the disk."""


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
                f"{len(stack)} layers cannot be merged: {error.strerror}",
                where=str(error.filename or home.rootfs),
                remedy="set TORCHKILN_HOME to a file system with hard links and free space",
            ) from error

    return layers.once(home, home.rootfs / "stacks" / name, f"stack-{name}", write) / layers.TREE


@contextmanager
def tree(home: Home, store: Store, image: Image) -> Iterator[Path]:
    """The merged tree of an image, kept from `gc` while it is in use."""
    with home.lock("use", shared=True):
        yield merge(home, store, image.layers)


def _unpack_all(home: Home, store: Store, stack: Sequence[Layer]) -> list[Path]:
    """Largest first, so that no worker begins with it last."""
    distinct = {layer.diff_id: layer for layer in sorted(stack, key=lambda layer: -layer.unpacked_size)}
    with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        found = dict(
            zip(distinct, pool.map(lambda layer: layers.unpack(home, store, layer), distinct.values()), strict=True)
        )
    return [found[layer.diff_id] for layer in stack]


def _merge(target: Path, trees: Sequence[Path]) -> None:
    target.mkdir(mode=0o755)
    described: dict[layers.Path_, Path] = {}
    with folders.opened(target) as root:
        for source in trees:
            notes = layers.notes(source)
            _hide(root, notes)
            with folders.opened(source) as top:
                _add(top, root, (), _Source(source, frozenset(notes.implied)), described)
        _describe_all(root, described)


@dataclass(frozen=True, slots=True)
class _Source:
    tree: Path
    implied: frozenset[layers.Path_]


def _hide(root: int, notes: layers.Notes) -> None:
    """Remove what this layer hides, before anything of its own is there."""
    for path in notes.opaque:
        with _existing(root, path) as handle:
            if handle is not None:
                for name in os.listdir(handle):  # noqa: PTH208  a descriptor, not a path
                    folders.discard(name, handle)
    for path in notes.removed:
        with _existing(root, path[:-1]) as handle:
            if handle is not None:
                folders.discard(path[-1], handle)


@contextmanager
def _existing(root: int, path: layers.Path_) -> Iterator[int | None]:
    """A folder of the lower layers; None if there is none, or only through a link, which is never followed."""
    try:
        handle = folders.descend(root, path)
    except (FileNotFoundError, ImageError):
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _add(source: int, target: int, path: layers.Path_, layer: _Source, described: dict[layers.Path_, Path]) -> None:
    """Link a folder's files and descend into its folders; as in overlayfs, a folder hides a link of a lower layer."""
    if path not in layer.implied or path not in described:
        described[path] = layer.tree
    with os.scandir(source) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                _link(entry.name, source, target)
                continue
            folders.make_folder(entry.name, target)
            below = os.open(entry.name, folders.FOLDER, dir_fd=source)
            beside = os.open(entry.name, folders.FOLDER, dir_fd=target)
            try:
                _add(below, beside, (*path, entry.name), layer, described)
            finally:
                os.close(below)
                os.close(beside)


def _link(name: str, source: int, target: int) -> None:
    try:
        os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except FileExistsError:
        folders.discard(name, target)
        os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


def _describe_all(root: int, described: dict[layers.Path_, Path]) -> None:
    """Give folders what the highest layer that describes them says, deepest first, for writing changes their times."""
    for path in sorted(described, key=len, reverse=True):
        with _existing(root, path) as handle:
            if handle is not None:
                about = os.lstat(described[path].joinpath(*path))
                if os.geteuid() == 0:
                    os.fchown(handle, about.st_uid, about.st_gid)
                os.fchmod(handle, about.st_mode & 0o7777)
                os.utime(handle, ns=(about.st_mtime_ns, about.st_mtime_ns))
