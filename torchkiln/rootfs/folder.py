"""Write below a folder by descriptors alone, so that no name from an archive is ever resolved through a link."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from torchkiln.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NONE: Mapping[str, bytes] = MappingProxyType({})


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a folder of our own."""
    handle = os.open(path, FOLDER)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def cursor(root: int) -> Iterator[Cursor]:
    """A place that moves below a folder."""
    place = Cursor(root)
    try:
        yield place
    finally:
        place.rise(0)


class Cursor:
    """A folder at or below a root, held open with all above it, so that a move costs only what differs."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._names: list[str] = []
        self._handles: list[int] = []

    def move(self, path: tuple[str, ...], made: Callable[[tuple[str, ...]], None] | None = None) -> int:
        """Open a folder, one component at a time; with `made`, tell and make what is missing; until the next move.

        ImageError if a component is a link or a file; FileNotFoundError if it is missing and may not be made.
        """
        shared = 0
        for wanted, name in zip(path, self._names, strict=False):
            if wanted != name:
                break
            shared += 1
        self.rise(shared)
        for depth in range(shared, len(path)):
            try:
                below = self._below(path, depth, made)
            except NotADirectoryError as error:  # O_DIRECTORY with O_NOFOLLOW answers so for links, too
                through = "/".join(path[: depth + 1])[:200]
                raise ImageError(f"a path goes through something that is no folder: {through!r}") from error
            self._names.append(path[depth])
            self._handles.append(below)
        return self._here

    def rise(self, depth: int) -> None:
        """Let go of all that is deeper."""
        while len(self._handles) > depth:
            os.close(self._handles.pop())
            self._names.pop()

    @property
    def _here(self) -> int:
        return self._handles[-1] if self._handles else self._root

    def _below(self, path: tuple[str, ...], depth: int, made: Callable[[tuple[str, ...]], None] | None) -> int:
        try:
            return os.open(path[depth], FOLDER, dir_fd=self._here)
        except FileNotFoundError:
            if made is None:
                raise
        made(path[: depth + 1])
        _make(path[depth], self._here)
        return os.open(path[depth], FOLDER, dir_fd=self._here)


def _make(name: str, parent: int) -> bool:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)  # the final mode is set when nothing is written below any more
    except FileExistsError:
        return False
    return True


def make_folder(name: str, parent: int) -> bool:
    """Make a folder in place of whatever other thing has that name; True if it is new."""
    if _make(name, parent):
        return True
    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        return False
    os.unlink(name, dir_fd=parent)
    return _make(name, parent)


def discard(name: str, parent: int) -> None:
    """Remove a name, if it is there, and if it is a folder all below it."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # unlink of a folder: EISDIR on Linux, EPERM by POSIX
        shutil.rmtree(name, dir_fd=parent)


def describe(
    handle: int,
    *,
    owner: tuple[int, int] | None = None,
    mode: int,
    mtime_ns: int,
    attributes: Mapping[str, bytes] = _NONE,
) -> None:
    """Owner, unless it is to stay, attributes, mode, time: chown clears setuid bits and capabilities."""
    if owner is not None:
        os.fchown(handle, *owner)
    for name, value in attributes.items():
        try:
            os.setxattr(handle, name, value)
        except OSError as error:
            if error.errno != errno.ENOTSUP:  # a file system without them
                raise
    os.fchmod(handle, mode)
    os.utime(handle, ns=(mtime_ns, mtime_ns))
