"""Which module makes which kind of base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.layers.base import debian, dockerfile, foreign, registry
from torchkiln.layers.base import recipe as recipes
from torchkiln.lock import basefit
from torchkiln.specs import AdoptionSpec, BaseSpec, ForeignSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torchkiln.layers.base import BaseResult
    from torchkiln.lock.baselock import BaseLock
    from torchkiln.matrix.target import Base, Target
    from torchkiln.oci.digest import Digest
    from torchkiln.project import Project
    from torchkiln.specs import LayerSpec


def recipe(base: Base) -> Digest:
    """Names the files of images/bases that belong to a base."""
    return recipes.read(base.kind if base.kind == "debian" else foreign.KIND).digest


def lock(project: Project, target: Target) -> BaseLock:
    """What the row's base holds today: the new lock; raises as the kind's module."""
    home, store, base = project.home, project.store, target.base
    if base.kind == "registry":
        return registry.lock(home, store, base, machine=target.arch, environment=project.environment)
    if base.kind == "dockerfile":
        return dockerfile.lock(home, store, base, folder(project, base), machine=target.arch)
    return debian.packages(home, base, recipe=debian.recipe(), environment=project.environment, machine=target.arch)


def settle(project: Project, target: Target, locked: BaseLock, *, frozen: bool) -> BaseLock:
    """What the row's base will hold: the lock, but where the Docker engine builds something else today."""
    if target.base.kind != "dockerfile":
        return locked
    home, store, place = project.home, project.store, folder(project, target.base)
    relock = basefit.command(target)
    return dockerfile.settle(home, store, target.base, locked, place, machine=target.arch, frozen=frozen, relock=relock)


def folder(project: Project, base: Base) -> Path:
    """Where the Dockerfile of a base is."""
    return project.root / "images" / base.id


def build(project: Project, specs: Sequence[LayerSpec], *, frozen: bool) -> BaseResult:
    """The layers of a base, from the cache as far as they are there; raises as the kind's module."""
    home, store, environment = project.home, project.store, project.environment
    for spec in specs:
        if isinstance(spec, BaseSpec):
            return debian.build(home, store, spec, recipe=debian.recipe(), frozen=frozen, environment=environment)
    below = [spec for spec in specs if isinstance(spec, ForeignSpec)]
    (adoption,) = [spec for spec in specs if isinstance(spec, AdoptionSpec)]
    if adoption.base.kind == "registry":
        registry.fetch(store, adoption, environment=environment)
    return foreign.build(home, store, below, adoption)
