"""What the images of rows are made of, and whether they can be made, told without making anything."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln import locking, sharing, validation
from torchkiln.console import note
from torchkiln.errors import LockError, MatrixError, PlanError, StaleLockError, TorchkilnError, WheelError
from torchkiln.layers import parts, suite
from torchkiln.layers.base import table as userlands
from torchkiln.lock import layerlock, rows
from torchkiln.matrix.publishing import ANY
from torchkiln.matrix.target import publishing
from torchkiln.oci.image import recorded
from torchkiln.plan import ImagePlan, plan, refuse_large
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchkiln.lock.baselock import BaseLock
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.target import Target
    from torchkiln.project import Project
    from torchkiln.sharing import Family
    from torchkiln.specs import SuiteSpec


def locked(project: Project, target: Target, known: Facts | None = None) -> tuple[Lock, BaseLock]:
    """The committed locks of a row, held against it; MatrixError for a row that the facts refuse."""
    locking.refuse(project, [target], known)
    validation.check_required([target], project.suite)
    return rows.read(project.locks, target), rows.packages(project.locks, target)


def planned(project: Project, target: Target) -> ImagePlan:
    """What an image of this row would be made of."""
    return planned_from(project, target, *locked(project, target))


def planned_from(
    project: Project, target: Target, lock: Lock, base: BaseLock, shipped: SuiteSpec | None = None
) -> ImagePlan:
    """What it would be made of with these locks; the suite is that of the checkout unless one is given."""
    shipped = replace(shipped or suite.spec(project.suite), expectation=validation.expectation(target, lock))
    return plan(target, lock, base, shipped, recipe=userlands.recipe(target.base))


def family(project: Project, targets: Sequence[Target], known: Facts, chosen: Collection[str] | None = None) -> Family:
    """What the images of these rows would be made of, side by side; rows that can't be planned are left out.

    Of the chosen rows, else of all, those are left out too that a build would refuse, as far as that can be told from
    what is here. The others are there to be compared with: one that has no room in what the publish target takes is
    planned as it is made without it.
    """
    shipped = suite.spec(project.suite)
    plans: list[ImagePlan] = []
    left_out: dict[str, TorchkilnError] = {}
    freed = 0
    for target in targets:
        try:
            locks = locked(project, target, known)
            if chosen is None or target.id in chosen:
                plans.append(planned_from(project, target, *locks, shipped))
                refuse_impossible(project, plans[-1])
            else:
                plan, as_asked = _somehow(project, target, locks, shipped)
                plans.append(plan)
                freed += not as_asked
        except (MatrixError, LockError, StaleLockError, PlanError) as error:
            plans = [plan for plan in plans if plan.target != target.id]
            left_out[target.id] = error
    if freed and not left_out.keys() & set(chosen or ()):
        note(f"rows without room in what the publish target takes, compared as made without it: {freed}")
    keys = {key for one in plans for key in one.keys}
    made = {key: layer.descriptor.size for key in keys if (layer := recorded(project.home.lookup(key)))}
    return sharing.family(plans, made, left_out)


def _somehow(
    project: Project, target: Target, locks: tuple[Lock, BaseLock], shipped: SuiteSpec
) -> tuple[ImagePlan, bool]:
    """The plan of a row for its publish target, else for none; and whether it is as asked."""
    try:
        return planned_from(project, target, *locks, shipped), True
    except PlanError:
        if target.publish_target == ANY:
            raise
        return planned_from(project, publishing(target, ANY, target.compression), *locks, shipped), False


def refuse_impossible(project: Project, plan: ImagePlan) -> None:
    """PlanError for what a build would refuse too: a file too big for any layer, or a layer that is known to be.

    Only wheels in the cache are looked into, and only layers that were locked or made before are known.
    """
    paths = {
        pin.sha256: path
        for spec in plan.layers
        if isinstance(spec, WheelSpec) and spec.part
        for pin in spec.pins
        if (path := project.home.wheel(pin.sha256, pin.filename)).exists()
    }
    here = [
        spec
        for spec in plan.layers
        if isinstance(spec, WheelSpec) and {pin.sha256 for pin in spec.pins} <= paths.keys()
    ]
    with suppress(WheelError):  # a damaged copy, which a build fetches anew
        parts.check(here, paths)
    if plan.max_layer_bytes is not None:
        locks = layerlock.read(project.layer_lock)
        found = [locks.get(key) or recorded(project.home.lookup(key)) for key in plan.keys]
        refuse_large(plan, [layer for layer in found if layer])
