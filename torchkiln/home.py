"""What is cached and where: $TORCHKILN_HOME, its file locks, and the index from layer keys to layers.

Layout: wheels/ by sha256, store/ (OCI image layout), index/ (layer key → layer), boundaries/ (how a wheel's layer is
made again without inflating), rootfs/ (unpacked layers, merged trees), facts/ (what checks read of layers), locks/,
tmp/. Everything is written under a temporary name in the same file system and renamed, so a kill at any instant
leaves only whole files and forgotten temporaries, which `gc` removes. What a power cut could damage unseen is fsynced
first, but for rootfs/ (see `rootfs.once`).
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln import room
from torchkiln.console import note
from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


@dataclass(frozen=True, slots=True)
class Home:
    """The cache folder; every path below it is derived here and nowhere else."""

    root: Path

    @property
    def wheels(self) -> Path:
        """Downloaded wheels, one folder per sha256."""
        return self.root / "wheels"

    @property
    def store(self) -> Path:
        """The OCI image layout."""
        return self.root / "store"

    @property
    def index(self) -> Path:
        """One JSON file per layer key."""
        return self.root / "index"

    @property
    def rootfs(self) -> Path:
        """Unpacked layers and merged trees."""
        return self.root / "rootfs"

    @property
    def facts(self) -> Path:
        """What static checks read of each layer, one JSON file per diff_id."""
        return self.root / "facts"

    @property
    def boundaries(self) -> Path:
        """Where the deflate blocks of each converted wheel end, one file per sha256 of a wheel."""
        return self.root / "boundaries"

    @property
    def temporary(self) -> Path:
        """Work in progress; anything here may be deleted when no build runs."""
        return self.root / "tmp"

    @property
    def locks(self) -> Path:
        """One file per named lock."""
        return self.root / "locks"

    def wheel(self, sha256: str, filename: str) -> Path:
        """Where a verified wheel lies."""
        return self.wheels / sha256 / filename

    def lookup(self, key: str) -> Mapping[str, Any] | None:
        """What the index holds under a layer key (Layer.to_json's form); its blob may be missing from the store."""
        path = self.index / f"{key}.json"
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            path.unlink(missing_ok=True)  # a damaged entry is no entry: the layer is made again
            return None
        return found

    def record(self, key: str, entry: Mapping[str, Any]) -> None:
        """Remember what a layer key became."""
        write_atomically(self.index / f"{key}.json", json.dumps(entry, sort_keys=True).encode())

    def forget(self, key: str) -> None:
        """Remember nothing of a layer key: it is made when it is needed next."""
        (self.index / f"{key}.json").unlink(missing_ok=True)

    @contextmanager
    def lock(self, name: str, *, shared: bool = False) -> Iterator[None]:
        """Hold a named lock between processes; the kernel releases it when its owner dies."""
        self.locks.mkdir(parents=True, exist_ok=True)
        with (self.locks / f"{name}.lock").open("a") as handle:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                note(f"waiting for another program that is at work in {self.root} ({name})")
                fcntl.flock(handle, kind)
            yield


def locate(environment: Mapping[str, str]) -> Home:
    """$TORCHKILN_HOME, else torchkiln in the user's cache folder (XDG Base Directory, XDG_CACHE_HOME)."""
    stated = environment.get("TORCHKILN_HOME")
    if stated:
        return Home(Path(stated).absolute())
    cache = environment.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path(environment.get("HOME") or "/root") / ".cache"
    return Home(base.absolute() / "torchkiln")


def prepare(home: Home) -> Home:
    """Make the folders; HostError if they cannot be written."""
    try:
        for folder in (home.wheels, home.store, home.index, home.rootfs, home.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home.temporary):
            pass
    except OSError as error:
        raise HostError(
            f"the cache folder cannot be written: {error.strerror}",
            where=str(home.root),
            remedy="set TORCHKILN_HOME to a folder on a disk you may write to",
        ) from error
    return home


def forgotten(folder: Path) -> Iterator[Path]:
    """What `write_atomically` left in a folder when it was killed; also what it is about to rename, if it runs."""
    return folder.glob(".*.????????")


def write_atomically(path: Path, data: bytes) -> None:
    """Write, fsync, rename: readers see the old file or the new one, never a part. HostError if the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with room.told(path.parent), os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(name, path)  # noqa: PTH105  on names, as mkstemp gives them
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
