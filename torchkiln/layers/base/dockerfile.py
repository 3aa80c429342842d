"""A base that the Docker engine builds from images/<name>/Dockerfile, and whose layers are taken out of the engine.

Such a build is not reproducible: times, archives and networks are in it. So its lock names the layers that came out
once; what differs when it is built anew is told, and refused under `frozen`.
"""

from __future__ import annotations

import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.console import step, warn
from torchkiln.engines import docker
from torchkiln.errors import BaseError, ImageError, LockError
from torchkiln.layers.base import foreign
from torchkiln.layers.deflate import GzipWriter
from torchkiln.lock import baselock
from torchkiln.oci import content, load
from torchkiln.oci import digest as digests
from torchkiln.oci.image import ARCHITECTURES, LAYER_TYPE, Layer, canonical
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from torchkiln.home import Home
    from torchkiln.lock.baselock import BaseLock
    from torchkiln.matrix.target import Base
    from torchkiln.oci.digest import Digest

_SHOWN = 8


def source(folder: Path) -> Digest:
    """Names the content of a Dockerfile's folder: paths, executable bits, contents, and where links point."""
    if not (folder / "Dockerfile").is_file():
        raise BaseError("there is no Dockerfile", where=str(folder), remedy="write it, or correct the base's name")
    return digests.of_bytes(canonical([_about(path, folder) for path in sorted(folder.rglob("*"))]))


def _about(path: Path, folder: Path) -> list[str]:
    name = str(path.relative_to(folder))
    if path.is_symlink():
        return [name, "link", str(path.readlink())]
    if path.is_dir():
        return [name, "folder", ""]
    kind = "program" if path.stat().st_mode & stat.S_IXUSR else "file"  # as git keeps it
    return [name, kind, digests.of_file(path)[0]]


def lock(home: Home, store: Store, base: Base, folder: Path, *, machine: str) -> BaseLock:
    """Build it, and say what came out: the new lock; BaseError if the build fails or the image can't be a base."""
    made = source(folder)
    with step(f"docker build base {base.name}"):
        identity = docker.build(folder, platform=f"linux/{ARCHITECTURES[machine]}", where=f"base {base.name}")
    with (
        step(f"layers of base {base.name}"),
        tempfile.TemporaryDirectory(prefix="dockerfile-", dir=home.temporary) as scratch,
    ):
        image = load.archive(docker.save(identity), Store(Path(scratch)), f"base {base.name}").image
        if image.config.architecture != ARCHITECTURES[machine]:
            what = f"Docker built for {image.config.architecture}, not {ARCHITECTURES[machine]}"
            raise BaseError(what, where=f"base {base.name}", remedy="compare its FROM")
        layers = [_packed(Store(Path(scratch)), store, layer) for layer in image.layers]
    foreign.tell_dropped(base, image.config)
    found = foreign.lock(home, store, base, layers, machine=machine, source=made, config=identity)
    home.record(_key(made, machine), {"lock": baselock.render(found)})
    return found


def _packed(scratch: Store, store: Store, layer: Layer) -> Layer:
    """The same tar, compressed by us: what the engine saves is plain."""
    with content.tar_of(scratch, layer.descriptor.digest) as tar, store.writer() as blob:
        packed = GzipWriter(blob)
        while piece := tar.read(digests.CHUNK):
            packed.write(piece)
        packed.close()
        if packed.digest != layer.diff_id:
            raise ImageError(f"the engine saved another tar than {layer.diff_id}")
        return replace(layer, descriptor=blob.commit(LAYER_TYPE), title="")


def settle(
    home: Home,
    store: Store,
    base: Base,
    locked: BaseLock,
    folder: Path,
    *,
    machine: str,
    frozen: bool,
    relock: str = baselock.COMMAND,
) -> BaseLock:
    """The layers to use: the locked ones if they are here, else those of a build of today; their difference is told.

    BaseError if they differ and `frozen` is set, or if the Dockerfile's folder is not the locked one; raises as `lock`.
    """
    made = source(folder)
    if locked.source != made and frozen:
        what = "the Dockerfile's folder has changed since it was locked"
        raise BaseError(what, where=str(folder), remedy=f"{relock} accepts it")
    if locked.source == made and _here(store, locked):
        return locked
    found = _remembered(home, made, machine)
    if found is None or not _here(store, found):
        found = lock(home, store, base, folder, machine=machine)
    _tell(base, baselock.difference(locked, found), frozen=frozen, relock=relock)
    return found


def _here(store: Store, locked: BaseLock) -> bool:
    return all(store.has(layer.descriptor) for layer in locked.layers)


def _key(made: Digest, machine: str) -> str:
    return f"dockerfile-{digests.encoded(digests.of_bytes(canonical([made, machine])))}"


def _remembered(home: Home, made: Digest, machine: str) -> BaseLock | None:
    """What the last build of this folder gave, on this machine."""
    entry = home.lookup(_key(made, machine)) or {}
    try:
        return baselock.parse(str(entry.get("lock", ""))) if entry else None
    except LockError:
        return None


def _tell(base: Base, difference: tuple[str, ...], *, frozen: bool, relock: str) -> None:
    if not difference:
        return
    more = f"; and {len(difference) - _SHOWN} more" if len(difference) > _SHOWN else ""
    what = f"Docker built something else than the lock says: {'; '.join(difference[:_SHOWN])}{more}"
    if frozen:
        raise BaseError(what, where=f"base {base.name}", remedy=f"{relock} accepts what was built")
    warn(f"base {base.name}: {what}")
