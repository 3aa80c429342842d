"""What the home may forget: everything no named image needs."""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import StoreError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import recorded
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.oci.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was removed."""

    files: int
    size: int
    """Bytes."""


def needed(store: Store) -> set[Digest]:
    """Manifests, configs and layers of every named image."""
    found: set[Digest] = set()
    for descriptor in store.refs().values():
        document = json.loads(store.read(descriptor.digest))
        parts = [document["config"], *document["layers"]]
        found |= {descriptor.digest, *(digests.parse(part["digest"]) for part in parts)}
    return found


def unneeded(home: Home, *, wheels: bool) -> Iterator[Path]:
    """Paths that may go: temporaries, blobs, index entries, trees, facts; wheels and their boundaries too if asked."""
    keep = needed(Store(home.store))
    names = {digests.encoded(digest) for digest in keep}
    yield from (home.temporary.iterdir() if home.temporary.is_dir() else ())
    uploads = Store(home.store).uploads
    yield from (uploads.iterdir() if uploads.is_dir() else ())
    blobs = Store(home.store).blobs
    yield from (path for path in (blobs.iterdir() if blobs.is_dir() else ()) if path.name not in names)
    for entry in home.index.glob("*.json"):
        layer = recorded(home.lookup(entry.stem))
        if layer is not None and layer.descriptor.digest not in keep:
            yield entry
    yield from (home.facts.iterdir() if home.facts.is_dir() else ())  # read again from the layers likewise
    yield from (home.rootfs.iterdir() if home.rootfs.is_dir() else ())  # remade from the layers when next needed
    for folder in (home.wheels, home.boundaries) if wheels else ():  # of use with wheels only
        yield from folder.iterdir() if folder.is_dir() else ()


def size_of(path: Path) -> tuple[int, int]:
    """Files and bytes at or below a path, links not followed."""
    if path.is_dir() and not path.is_symlink():
        below = [size_of(child) for child in path.iterdir()]
        return sum(files for files, _ in below), sum(size for _, size in below)
    return 1, path.lstat().st_size


def _forget(store: Store, names: Sequence[str]) -> None:
    known = store.refs()
    if unknown := [name for name in names if name not in known]:
        raise StoreError(
            f"no image is named {', '.join(unknown)}",
            where=str(store.root),
            remedy=f"one of {', '.join(sorted(known)) or 'none: nothing is built'}",
        )
    for name in names:
        store.untag(name)


def _remove(home: Home, path: Path) -> None:
    """A folder goes by its name first: a kill leaves a temporary, never half a tree that still counts as whole."""
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return
    if path.parent != home.temporary:
        home.temporary.mkdir(parents=True, exist_ok=True)
        path = path.rename(home.temporary / f"gone-{secrets.token_hex(8)}")
    shutil.rmtree(path)


def collect(home: Home, *, forget: Sequence[str] = (), wheels: bool = False) -> Collected:
    """Remove what no named image needs, after forgetting names; waits until nothing holds the cache (lock `use`).

    Raises StoreError for a name that no image has.
    """
    files = size = 0
    with home.lock("use"):
        _forget(Store(home.store), forget)
        for path in list(unneeded(home, wheels=wheels)):
            more_files, more_size = size_of(path)
            files, size = files + more_files, size + more_size
            _remove(home, path)
    return Collected(files=files, size=size)
