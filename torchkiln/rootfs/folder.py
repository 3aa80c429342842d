"""Write below a folder by descriptors alone, so that no name from an archive is ever resolved through a link."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchkiln.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a folder of our own."""
    handle = os.open(path, FOLDER)
    try:
        yield handle
    finally:
        os.close(handle)


def descend(root: int, path: tuple[str, ...], made: Callable[[tuple[str, ...]], None] | None = None) -> int:
    """Open a folder below `root`, one component at a time; with `made`, make what is missing and tell.

    ImageError if a component is a link or a file; FileNotFoundError if it is missing and may not be made.
    """
    here = os.dup(root)
    try:
        for depth, part in enumerate(path, start=1):
            if made is not None and _make(part, here):
                made(path[:depth])
            below = os.open(part, FOLDER, dir_fd=here)
            os.close(here)
            here = below
    except NotADirectoryError as error:  # O_DIRECTORY with O_NOFOLLOW answers so for links, too
        os.close(here)
        raise ImageError(f"a path goes through something that is no folder: {'/'.join(path)[:200]!r}") from error
    except BaseException:
        os.close(here)
        raise
    return here


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


def discard(name: str, parent: int) -> bool:
    """Remove a name and, if it is a folder, all below it; True if that was a folder."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    except (IsADirectoryError, PermissionError):  # unlink of a folder: EISDIR on Linux, EPERM by POSIX
        shutil.rmtree(name, dir_fd=parent)
        return True
    return False
