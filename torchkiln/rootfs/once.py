"""A folder is there as a whole or not at all, made by one process for all."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchkiln.home import Home


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
