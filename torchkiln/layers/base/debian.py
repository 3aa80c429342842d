"""The userland of Debian: mmdebstrap → one layer, free of the machine that built it.

What the layer holds is decided by the archive on the day it is made, so the index remembers its packages: a
difference from the lock is told every time the layer is used, and refused under `frozen`, from the cache as well.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.console import step, warn
from torchkiln.errors import BaseError, PlanError
from torchkiln.layers.archive import write_layer
from torchkiln.layers.base import BaseResult, bootstrap, userland
from torchkiln.layers.base import recipe as recipes
from torchkiln.lock import basefit, baselock
from torchkiln.matrix.target import ARCH
from torchkiln.oci.image import recorded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchkiln.home import Home
    from torchkiln.layers.base.recipe import Recipe
    from torchkiln.lock.baselock import BaseLock
    from torchkiln.matrix.target import Base
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store
    from torchkiln.specs import BaseSpec

_SHOWN = 20


def recipe() -> Recipe:
    """The recipe of userlands."""
    return recipes.read("debian")


def build(
    home: Home, store: Store, spec: BaseSpec, *, recipe: Recipe, frozen: bool, environment: Mapping[str, str]
) -> BaseResult:
    """The base layer, from the cache if it is there; what differs from its lock is told.

    BaseError if something differs and `frozen` is set, or if mmdebstrap fails; HostError if it is missing; PlanError if
    the spec was planned with another recipe.
    """
    if spec.recipe != recipe.digest:
        raise PlanError(f"base {spec.base.name} was planned with another recipe", where=spec.recipe or "no recipe")
    with home.lock(spec.key):
        found = _known(home, store, spec.key)
        if found is None:
            with step(f"base {spec.base.name}"), _userland(home, spec.base, recipe, environment, spec.arch) as tar:
                packages = baselock.make(userland.packages(tar))
                _refuse(spec, packages, frozen=frozen)
                layer = write_layer(store, spec.title, userland.read(tar, recipe.rootfs, spec.base.packages))
            _remember(home, spec.key, layer.to_json(), packages)
            found = layer, packages
    layer, packages = found
    _refuse(spec, packages, frozen=frozen)
    difference = baselock.difference(spec.lock, packages)
    if difference:
        warn(f"base {spec.base.name}: the archive has moved on from the lock: {_short(difference)}")
    return BaseResult(layers=(layer,), packages=packages, difference=difference)


def packages(
    home: Home, base: Base, *, recipe: Recipe, environment: Mapping[str, str], machine: str = ARCH
) -> BaseLock:
    """What the archive would put into a base today: the new lock; BaseError or HostError as `build`."""
    with step(f"packages of base {base.name}"), _userland(home, base, recipe, environment, machine) as tar:
        return baselock.make(userland.packages(tar), basefit.asked(base, machine))


@contextmanager
def _userland(home: Home, base: Base, recipe: Recipe, environment: Mapping[str, str], machine: str) -> Iterator[Path]:
    """The tar that mmdebstrap makes, while it is needed."""
    with tempfile.TemporaryDirectory(prefix="base-", dir=home.temporary, ignore_cleanup_errors=True) as folder:
        yield bootstrap.run(
            base,
            Path(folder),
            setup=recipe.setup,
            excludes=recipe.excludes,
            environment=environment,
            machine=machine,
        )


def _known(home: Home, store: Store, key: str) -> tuple[Layer, BaseLock] | None:
    """What the index holds, if the blob is there too; an entry that names no packages is completed from the blob."""
    entry = home.lookup(key)
    layer = recorded(entry)
    if entry is None or layer is None or not store.has(layer.descriptor):
        return None
    if "packages" in entry:
        packages = baselock.make((str(name), str(version)) for name, version in entry["packages"])
    else:
        with step("packages of a base from elsewhere"):
            packages = baselock.make(userland.packages_of(store, layer))
        _remember(home, key, entry, packages)
    return layer, packages


def _remember(home: Home, key: str, entry: Mapping[str, Any], packages: BaseLock) -> None:
    """Let the index have with a base what it holds, besides all that it has."""
    home.record(key, {**entry, "packages": [list(package) for package in packages.packages]})


def _refuse(spec: BaseSpec, packages: BaseLock, *, frozen: bool) -> None:
    difference = baselock.difference(spec.lock, packages)
    if difference and frozen:
        raise BaseError(
            f"the archive has moved on from the lock: {_short(difference)}",
            where=f"base {spec.base.name}",
            remedy=f"{spec.relock} accepts the new versions; a dated `mirror` in matrix.yaml keeps the old ones",
        )


def _short(difference: tuple[str, ...]) -> str:
    more = len(difference) - _SHOWN
    return "; ".join(difference[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
