"""Every engine, the choice between them, and the images that are found through them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln.engines import docker
from torchkiln.engines.docker import Docker
from torchkiln.engines.sandbox import Sandbox
from torchkiln.errors import ROW, EngineError, ImageError, UsageError
from torchkiln.oci import load

if TYPE_CHECKING:
    from torchkiln.engines import Engine, Trees
    from torchkiln.oci.load import Foreign
    from torchkiln.oci.store import Store

NAMES = ("auto", "docker", "sandbox")


def engines(store: Store, trees: Trees, there: Foreign | None = None) -> tuple[Engine, ...]:
    """Preferred first: Docker keeps what it loaded, and can do more (see `restrictions`)."""
    return (Docker(store, there=there), Sandbox(trees))


def pick(name: str, store: Store, trees: Trees, there: Foreign | None = None) -> Engine:
    """The engine of that name, or with `auto` the first that works; EngineError says what each lacks.

    UsageError if none is called so.

    `trees` is `functools.partial(rootfs.tree, home, store)`: engines lie below rootfs in the import order.
    `there` is an image that came from the Docker engine.
    """
    if name not in NAMES:
        raise UsageError(f"there is no engine {name!r}", remedy=f"one of {', '.join(NAMES)}")
    lacking = {}
    for engine in engines(store, trees, there):
        if name in ("auto", engine.name):
            lacking[engine.name] = engine.lacks()
            if not lacking[engine.name]:
                return engine
    what = "no engine works here" if name == "auto" else f"the engine {name} does not work here"
    raise EngineError(what, where="\n".join(f"{engine}: {reason}" for engine, reason in lacking.items()))


def open_image(reference: str, scratch: Store) -> Foreign:
    """`oci:DIR[:REF]` where it lies, or `docker-daemon:NAME` copied into a store that the caller removes."""
    kind, _, name = reference.partition(":")
    if kind == "oci" and name:
        return load.layout(name)
    if kind == "docker-daemon" and name:
        known = docker.identify(name)
        return replace(load.archive(docker.save(name), scratch, reference), loaded=known)
    pull = f"./inv pull {reference.removeprefix('docker://')}, then ./inv validate {ROW} without --image"
    raise ImageError(
        f"no image reference: {reference!r}", remedy=f"oci:DIR[:REF] or docker-daemon:NAME; from a registry: {pull}"
    )
