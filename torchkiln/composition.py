"""What of a plan a repository has, so that it need not be made here, and what of that must be brought all the same."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from torchkiln.assembly import bases, claims, put_together, together
from torchkiln.console import note, step, warn
from torchkiln.lock import layerlock
from torchkiln.oci import layerindex
from torchkiln.oci.image import recorded
from torchkiln.oci.upload import send
from torchkiln.specs import AdoptionSpec, BytecodeSpec, EnvironmentSpec, ForeignSpec, SuiteSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from torchkiln.lock.lockfile import Lock
    from torchkiln.oci.image import Descriptor, Image, Layer
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.remote import Remote
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project
    from torchkiln.specs import LayerSpec

CHEAP = (EnvironmentSpec, SuiteSpec)
"""Made of nothing in an instant: nobody is asked for them."""


def compose(
    project: Project,
    plan: ImagePlan,
    lock: Lock,
    remote: Remote,
    *,
    here: bool,
    frozen: bool = False,
    stages: dict[str, float] | None = None,
) -> dict[str, Layer]:
    """Layers of a plan by key that need not be made, and are not here; with `here`, blobs are brought so that none is.

    Without it only what this build itself needs is brought. What was brought is as if it had been made here, unless no
    lock knows it: that is noted (`claims`). `frozen` takes only what a lock knows. What the registry serves as other
    bytes is told, and is to be made. FetchError if it can't be had. Where all is here nothing is asked or said;
    `stages` is told the seconds of what is.
    """
    wanted = _wanted(project, plan)
    found: dict[str, Layer] = {}
    if wanted:
        with step("compose", stages):
            found = _found(project, plan, wanted, remote, here=here, frozen=frozen)
    _compared(project, plan, lock, remote.registry)
    return {key: layer for key, layer in found.items() if not project.store.has(layer.descriptor)}


def _found(
    project: Project, plan: ImagePlan, wanted: Mapping[str, str], remote: Remote, *, here: bool, frozen: bool
) -> dict[str, Layer]:
    """Those of the wanted layers that need not be made, once what is needed of them is here."""
    locked = {**layerlock.read(project.layer_lock), **_foreign(plan)}
    tars = {key: locked[spec.key].diff_id for key, spec in _keyed(plan) if spec.key in locked}
    with step(f"look for {len(wanted)} layers in {remote.registry.where}"):
        found = remote.find(wanted, locked, tars=tars, strict=frozen)
        lesser = remote.find(_made_first(project, plan, wanted.keys() - found.keys()), locked, strict=frozen)
        size = sum(layer.descriptor.size for layer in (*found.values(), *lesser.values()))
        if found or lesser:
            note(f"{len(found) + len(lesser)} of them are there: {size / 1e9:.2f} GB that need not be made")
        else:
            warn("none of them is there: they are made here; is it the right repository?")
    _bring(plan, wanted, found, lesser, remote, here=here)
    came = {key: layer for key, layer in {**found, **lesser}.items() if project.store.has(layer.descriptor)}
    if came:
        note(f"{len(came)} of them are here now: {sum(layer.descriptor.size for layer in came.values()) / 1e6:.1f} MB")
    for key, layer in came.items():
        claims.record(project.home, key, layer, claimed=key not in locked)
    return found


def _bring(
    plan: ImagePlan,
    wanted: Collection[str],
    found: dict[str, Layer],
    lesser: dict[str, Layer],
    remote: Remote,
    *,
    here: bool,
) -> None:
    """Bring what is needed; what turns out damaged is dropped, and then more may be needed: to make that."""
    bad = None
    while bad is None or bad:
        missing = [spec for key, spec in _keyed(plan) if key in wanted and key not in found and spec.key not in lesser]
        needed = {**(found if here else needed_here(plan, missing, found)), **lesser}
        absent = {
            key: layer for key, layer in needed.items() if not (layer.empty or remote.store.has(layer.descriptor))
        }
        if not absent:
            return
        with step(f"bring {len(absent)} of them here"):
            bad = remote.bring(absent)
        for key in bad:
            found.pop(key, None)
            lesser.pop(key, None)


def needed_here(plan: ImagePlan, missing: Iterable[LayerSpec], found: Mapping[str, Layer]) -> dict[str, Layer]:
    """What must be brought though it need not be made: the base, for its interpreter, or to be completed."""
    if not any(isinstance(spec, BytecodeSpec | AdoptionSpec) for spec in missing):
        return {}
    base = {key for key, spec in _keyed(plan) if spec in bases.parts(plan)}
    return {key: found[key] for key in base if key in found}


def recalled(
    project: Project, plan: ImagePlan, lock: Lock, blobs: Sequence[Descriptor]
) -> tuple[ImagePlan, Image] | None:
    """The plan and image as `assemble` gave them, if the layers that were made of it here are just these blobs."""
    if not together.known(project, plan, lock):
        return None  # nobody has seen whether its wheels go together, which an index states too
    locked, foreign = layerlock.read(project.layer_lock), _foreign(plan)
    layers: list[Layer] = []
    for key, spec in _keyed(plan):
        made = recorded(project.home.lookup(spec.key)) or locked.get(spec.key)
        layer = foreign.get(key) or recorded(project.home.lookup(key)) or (made if made and made.empty else None)
        if layer is None:
            return None
        layers.append(layer)
    plan, image = put_together(plan, layers)
    same = [layer.descriptor.digest for layer in image.layers] == [blob.digest for blob in blobs]
    return (plan, image) if same else None


def empty(project: Project, plan: ImagePlan) -> dict[str, tuple[Layer, bytes]]:
    """Layers of a plan by key that turned out to hold nothing, as far as they are here, and their blobs.

    No image has them, but whoever does not know would have to fetch their wheels to find out.
    """
    layers = {
        key: recorded(project.home.lookup(key)) or recorded(project.home.lookup(spec.key)) for key, spec in _keyed(plan)
    }
    return {
        key: (layer, project.store.read(layer.descriptor.digest))
        for key, layer in layers.items()
        if layer and layer.empty and project.store.has(layer.descriptor)
    }


def index(
    registry: Registry,
    plan: ImagePlan,
    image: Image,
    lock: Lock,
    nothing: Mapping[str, tuple[Layer, bytes]] = MappingProxyType({}),
) -> None:
    """Let the repository that an image was pushed to name its layers by their keys, for other machines to compose from.

    `nothing` are the layers that are `empty`. An index that can't be written is told, and no error: the image is
    there, and whole.
    """
    layers = dict(zip(plan.keys, image.layers, strict=True)) | {key: layer for key, (layer, _) in nothing.items()}
    try:
        for layer, blob in nothing.values():
            send(registry, layer.descriptor, partial(_stretch, blob))
        layerindex.record_all(registry, layers | {together.key(plan, lock): image.layers[-1]})
    except registry.failure as error:
        warn(f"the image is there, but not the index of its layers, which `build --from` finds them by: {error}")


def _stretch(blob: bytes, start: int, stop: int) -> Iterator[bytes]:
    yield blob[start:stop]


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


def _keyed(plan: ImagePlan) -> Iterable[tuple[str, LayerSpec]]:
    """What layers are made from, by their keys in the image."""
    return zip(plan.keys, plan.layers, strict=True)


def _wanted(project: Project, plan: ImagePlan) -> dict[str, str]:
    """The layers that are neither here nor cheap: titles by key."""
    return {key: spec.title for key, spec in _keyed(plan) if not isinstance(spec, CHEAP) and not _here(project, key)}


def _made_first(project: Project, plan: ImagePlan, missing: Collection[str]) -> dict[str, str]:
    """The same layers as gzip, from which those of another compression are made: titles by key."""
    return {
        spec.key: spec.title
        for key, spec in _keyed(plan)
        if key in missing and key != spec.key and not _here(project, spec.key)
    }


def _here(project: Project, key: str) -> bool:
    layer = recorded(project.home.lookup(key))
    return layer is not None and project.store.has(layer.descriptor)


def _foreign(plan: ImagePlan) -> dict[str, Layer]:
    """Layers of an image that others made: the base's lock knows them."""
    return {spec.key: spec.layer for spec in plan.layers if isinstance(spec, ForeignSpec)}
