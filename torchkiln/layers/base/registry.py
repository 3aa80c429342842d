"""A base that is pulled by digest from a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.console import step
from torchkiln.errors import BaseError
from torchkiln.layers.base import foreign
from torchkiln.oci.pull import pull

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.home import Home
    from torchkiln.lock.baselock import BaseLock
    from torchkiln.matrix.target import Base
    from torchkiln.oci.store import Store
    from torchkiln.specs import AdoptionSpec


def lock(home: Home, store: Store, base: Base, *, machine: str, environment: Mapping[str, str]) -> BaseLock:
    """What the image holds: the new lock; BaseError if it can't be a base, and as `oci.pull.pull`."""
    with step(f"pull base {base.name}"):
        pulled = pull(base.image, store, machine=machine, environment=environment)
    foreign.tell_dropped(base, pulled.image.config)
    return foreign.lock(
        home, store, base, pulled.image.layers, machine=machine, source=base.image, config=pulled.config
    )


def fetch(store: Store, spec: AdoptionSpec, *, environment: Mapping[str, str]) -> None:
    """Put the locked layers into the store, unless they are there; BaseError if the image has others."""
    base, locked = spec.base, spec.lock
    if all(store.has(layer.descriptor) for layer in locked.layers):
        return
    with step(f"pull base {base.name}"):
        pulled = pull(base.image, store, machine=spec.arch, environment=environment)
    if pulled.image.layers != locked.layers or pulled.config != locked.config:
        what = f"the image has other layers than {base.lock_name} lists"
        raise BaseError(what, where=base.image, remedy=f"{spec.relock}, and read the difference")
