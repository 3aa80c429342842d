"""What the home may forget: everything no named image needs."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import ImageError, StoreError
from torchkiln.home import forgotten
from torchkiln.oci import digest as digests
from torchkiln.oci import document as documents
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


def needed(store: Store, forget: Sequence[str] = ()) -> set[Digest]:
    """Manifests, configs and layers of the named images but these; StoreError if it can't be told what one needs."""
    found: set[Digest] = set()
    lost: list[str] = []
    for ref, descriptor in store.refs().items():
        if ref in forget:
            continue
        try:
            found |= _parts(store, descriptor.digest)
        except (StoreError, ImageError):
            lost.append(ref)
    if lost:
        raise StoreError(
            f"nothing is removed: the manifest of {', '.join(lost)} is missing or damaged, so it isn't known what of "
            "the cache that needs",
            where=str(store.root),
            remedy=f"./inv build or ./inv pull brings it again; ./inv gc{''.join(f' --forget {ref}' for ref in lost)} "
            "gives it up",
        )
    return found


def _parts(store: Store, digest: Digest) -> set[Digest]:
    """What an image consists of; ImageError for a manifest of other bytes, which could leave something out."""
    data = store.read(digest)
    if digests.of_bytes(data) != digest:
        raise ImageError(f"{digest} is damaged")
    manifest = documents.manifest(data)
    return {digest, manifest.config.digest, *(layer.digest for layer in manifest.layers)}


def unneeded(home: Home, keep: set[Digest], *, wheels: bool) -> Iterator[Path]:
    """Paths that may go: temporaries, blobs, index entries, trees, facts; wheels and their boundaries too if asked."""
    names = {digests.encoded(digest) for digest in keep}
    yield from (home.temporary.iterdir() if home.temporary.is_dir() else ())
    for folder in (home.store, home.index, home.boundaries):
        yield from forgotten(folder)
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


def _named(store: Store, names: Sequence[str]) -> None:
    known = store.refs()
    if unknown := [name for name in names if name not in known]:
        raise StoreError(
            f"no image is named {', '.join(unknown)}",
            where=str(store.root),
            remedy=f"one of {', '.join(sorted(known)) or 'none: nothing is built'}",
        )


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

    Raises StoreError for a name that no image has, and while a named image's manifest can't be read.
    """
    files = size = 0
    with home.lock("use"):
        store = Store(home.store)
        _named(store, forget)
        keep = needed(store, forget)
        for name in forget:
            store.untag(name)
        for path in list(unneeded(home, keep, wheels=wheels)):
            more_files, more_size = size_of(path)
            files, size = files + more_files, size + more_size
            _remove(home, path)
    return Collected(files=files, size=size)
