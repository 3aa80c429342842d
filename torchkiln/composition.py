"""What of a plan a repository has, so that it need not be made here, and what of that must be brought all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.assembly import making, together
from torchkiln.console import note, step, warn
from torchkiln.lock import layerlock
from torchkiln.oci import layerindex
from torchkiln.oci.image import recorded
from torchkiln.specs import AdoptionSpec, BytecodeSpec, EnvironmentSpec, ForeignSpec, SuiteSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchkiln.lock.lockfile import Lock
    from torchkiln.oci.image import Image, Layer
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.remote import Remote
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project

CHEAP = (EnvironmentSpec, SuiteSpec)
"""Made of nothing in an instant: nobody is asked for them."""


def compose(
    project: Project, plan: ImagePlan, lock: Lock, remote: Remote, *, here: bool, frozen: bool = False
) -> dict[str, Layer]:
    """Layers of a plan by key that need not be made, and are not here; with `here`, blobs are brought so that none is.

    Without it only what this build itself needs is brought. What was brought is as if it had been made here. `frozen`
    takes only what a lock knows. FetchError if the registry can't be had, HashMismatchError if it serves other bytes
    than those of a layer that a lock knows.
    """
    wanted = _wanted(project, plan)
    with step(f"look for {len(wanted)} layers in {remote.registry.where}"):
        found = remote.find(wanted, {**layerlock.read(project.layer_lock), **_foreign(plan)}, strict=frozen)
        size = sum(layer.descriptor.size for layer in found.values())
        note(f"{len(found)} of them are there: {size / 1e9:.2f} GB that need not be made")
    needed = found if here else needed_here(plan, wanted.keys() - found.keys(), found)
    with step(f"bring {len(needed)} of them here"):
        remote.bring(needed.values())
    for key, layer in found.items():
        if project.store.has(layer.descriptor):
            project.home.record(key, layer.to_json())
    _compared(project, plan, lock, remote.registry)
    return {key: layer for key, layer in found.items() if not project.store.has(layer.descriptor)}


def needed_here(plan: ImagePlan, missing: Collection[str], found: Mapping[str, Layer]) -> dict[str, Layer]:
    """What must be brought though it need not be made: the base, for its interpreter, or to be completed."""
    made = [spec for key, spec in zip(plan.keys, plan.layers, strict=True) if key in missing]
    if not any(isinstance(spec, BytecodeSpec | AdoptionSpec) for spec in made):
        return {}
    base = {key for key, spec in zip(plan.keys, plan.layers, strict=True) if spec in making.bases(plan)}
    return {key: found[key] for key in base if key in found}


def index(registry: Registry, plan: ImagePlan, image: Image, lock: Lock) -> None:
    """Let the repository that an image was pushed to name its layers by their keys, for other machines to compose from.

    An index that can't be written is told, and no error: the image is there, and whole.
    """
    layers = dict(zip(plan.keys, image.layers, strict=True))
    try:
        layerindex.record_all(registry, layers | {together.key(plan, lock): image.layers[-1]})
    except registry.failure as error:
        warn(f"the image is there, but not the index of its layers, which `build --from` finds them by: {error}")


def _compared(project: Project, plan: ImagePlan, lock: Lock, registry: Registry) -> None:
    """Learn that the wheels of a lock go together from where that was seen: else all are fetched, to compare them.

    A lie about that does no more than a lock that nobody has compared: the bytes are those of the layers.
    """
    if together.known(project, plan, lock):
        return
    if layerindex.lookup(registry, [together.key(plan, lock)]):
        together.remember(project, plan, lock)
    else:
        note(f"nobody has pushed the wheels of {plan.target} together: they are fetched once, to compare them")


def _wanted(project: Project, plan: ImagePlan) -> dict[str, str]:
    """The layers that are neither here nor cheap: titles by key."""
    planned = zip(plan.keys, plan.layers, strict=True)
    return {key: spec.title for key, spec in planned if not isinstance(spec, CHEAP) and not _here(project, key)}


def _here(project: Project, key: str) -> bool:
    layer = recorded(project.home.lookup(key))
    return layer is not None and project.store.has(layer.descriptor)


def _foreign(plan: ImagePlan) -> dict[str, Layer]:
    """Layers of an image that others made: the base's lock knows them."""
    return {spec.key: spec.layer for spec in plan.layers if isinstance(spec, ForeignSpec)}
