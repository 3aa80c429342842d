"""Wheels in the cache: only a file whose sha256 was checked gets its name there, so names and sizes are trusted."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchkiln import console, room
from torchkiln.download import StoppedError
from torchkiln.errors import HostError
from torchkiln.oci import digest as digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from torchkiln.download import Surroundings
    from torchkiln.home import Home
    from torchkiln.lock.lockfile import Pin


def cached(home: Home, pin: Pin) -> Path | None:
    """The verified file, by name and size; one of another size was damaged later and is thrown out."""
    path = home.wheel(pin.sha256, pin.filename)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return None
    if size != pin.size and pin.size is not None:
        console.warn(f"{path} has {size} bytes instead of {pin.size}: fetched anew")
        path.unlink(missing_ok=True)
        return None
    return path


def from_folders(home: Home, pin: Pin, folders: Iterable[Path]) -> Path | None:
    """The pinned file from the first folder that has it, copied into the cache."""
    for folder in folders:
        file = folder / pin.filename
        if file.is_file() and (path := adopt(home, pin, file)):
            return path
    return None


def adopt(home: Home, pin: Pin, file: Path) -> Path | None:
    """Copy a file at hand into the cache if it is the pinned one; say so if it is another.

    Never a hard link: whoever edits his file later would edit the cache, behind the name that promises a hash.
    """
    temporary = home.temporary / f"{pin.sha256}.{os.getpid()}.adopted"
    temporary.unlink(missing_ok=True)
    try:
        _copy(file, temporary)
        found, size = digests.of_file(temporary)
        if digests.encoded(found) == pin.sha256 and pin.size in {size, None}:
            return place(home, pin, temporary)
    except OSError as error:
        if error.errno in room.FULL:
            raise room.full(home.root, f"{file} is copied", pin.size or 0) from error
        raise HostError(f"{file} cannot be taken: {error.strerror}", where=str(home.root)) from error
    finally:
        temporary.unlink(missing_ok=True)
    console.warn(f"{file} is not the pinned file (sha256 {digests.encoded(found)}): not used")
    return None


def _copy(file: Path, copy: Path) -> None:
    """A copy that shares blocks with the file where the file system can do that (copy_file_range(2))."""
    try:
        with file.open("rb") as source, copy.open("wb") as sink:
            while os.copy_file_range(source.fileno(), sink.fileno(), 1 << 30):
                pass
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}:
            raise
        shutil.copyfile(file, copy)  # another file system, or one that cannot


def place(home: Home, pin: Pin, verified: Path) -> Path:
    """Give a verified file its final name."""
    path = home.wheel(pin.sha256, pin.filename)
    path.parent.mkdir(parents=True, exist_ok=True)
    with verified.open("rb") as file:
        os.fsync(file.fileno())
    verified.replace(path)
    return path


def partial_of(home: Home, pin: Pin) -> Path:
    """Where a wheel lies until all of it has come."""
    return home.temporary / f"{pin.sha256}.partial"


def check_room(home: Home, pins: Iterable[Pin]) -> None:
    """HostError if what is still to come does not fit on the disk."""
    needed = 0
    for pin in pins:
        partial = partial_of(home, pin)
        needed += max(0, (pin.size or 0) - (partial.stat().st_size if partial.exists() else 0))
    room.check(home.temporary, needed, "the wheels")


@contextmanager
def alone(home: Home, pin: Pin, around: Surroundings) -> Iterator[None]:
    """Hold the wheel between processes, as Home.lock does, but stop waiting when all stop."""
    home.locks.mkdir(parents=True, exist_ok=True)
    with (home.locks / f"wheel-{pin.sha256}.lock").open("a") as handle:
        while not _taken(handle.fileno()):
            if around.stopped():
                raise StoppedError
            around.sleep(0.2)
        yield


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
