"""Room on a disk: whether something fits, and what to say where it turns out that it doesn't."""

from __future__ import annotations

import errno
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
REMEDY = "make room (./inv gc), or set TORCHKILN_HOME to a folder on a larger disk"


def check(folder: Path, needed: int, what: str) -> None:
    """HostError before anything is written if so many bytes don't fit where a folder lies."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        told = f"the disk has no room for {what}: {_said(needed)} are needed, {_said(free)} are free"
        raise HostError(told, where=place(folder), remedy=REMEDY)


def full(folder: Path, during: str = "", needed: int = 0) -> HostError:
    """What to say when the disk of a folder takes no more: how many bytes are still to come, if known, what is free."""
    free = f"{_said(shutil.disk_usage(folder).free)} are free"
    more = f"{_said(needed)} more are needed, {free}" if needed else free
    return HostError(f"the disk is full{during and f' while {during}'}: {more}", where=place(folder), remedy=REMEDY)


@contextmanager
def told(folder: Path, during: str = "") -> Iterator[None]:
    """HostError, as `full`, where writing below a folder finds no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise full(folder, during) from error


def place(folder: Path) -> str:
    """A folder, and where the file system that it lies on is mounted."""
    mounted = next((above for above in (folder, *folder.parents) if above.is_mount()), folder)
    return str(folder) if folder == mounted else f"{folder}, on the file system of {mounted}"


def _said(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"  # noqa: PLR2004  a GB
