"""ImagePlan → Image: every layer is made as soon as what it is made from is there, and handed on as it is made.

Guarantees: a killed build goes on where it was, since every finished layer is in the index; two builds at once share
layers, since the second waits for the first; nothing is fetched for layers that are known; a layer that
images/locks/layers.lock knows is that layer, or there is no image.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torchkiln.assembly import bases, making, together
from torchkiln.assembly.ledger import Ledger
from torchkiln.assembly.stages import Stages
from torchkiln.layers import boundarylock
from torchkiln.lock import layerlock
from torchkiln.oci.image import Image, append
from torchkiln.plan import refuse_large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from torchkiln.layers.base import BaseResult
    from torchkiln.lock.lockfile import Lock
    from torchkiln.oci.image import Layer
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project
    from torchkiln.specs import LayerSpec


def assemble(
    project: Project,
    plan: ImagePlan,
    lock: Lock,
    *,
    frozen: bool,
    stages: dict[str, float],
    verify: bool = False,
    remote: Mapping[str, Layer] = MappingProxyType({}),
    made: Callable[[LayerSpec, Layer], None] = lambda _spec, _layer: None,
) -> tuple[ImagePlan, Image]:
    """The image of a plan, and the plan as it was carried out.

    `stages` is told the seconds of each kind of work, which overlap. `verify` makes and hashes all but the base anew.
    `remote` are layers by key, as the image has them, that lie elsewhere and need not be made; `made` is told of each
    as it is there, with what it was made from, in this thread; one that turned out empty will not be in the image.
    """
    with project.home.lock("assemble"):  # a second build waits, and then finds the layers it shares
        locked, told = layerlock.read(project.layer_lock), Stages(seconds=stages)
        ledger = Ledger(
            project=project,
            locked=locked,
            remote={} if verify else remote,
            verify=verify,
            compression=plan.compression,
            boundaries=boundarylock.spared(project.boundary_lock),
        )
        layers: dict[int, tuple[LayerSpec, Layer]] = {}  # by place: an image that others made may hold one layer twice
        with together.evicting(project, lock):
            together.fit(plan, lock, ledger, told)
        with (
            together.evicting(project, lock),
            layerlock.located(project.layer_lock, project.root),
            ThreadPoolExecutor(len(plan.layers) + 1) as threads,  # most of them wait for what their layer is made from
            making.inputs(plan, lock, ledger, told, frozen=frozen) as inputs,
        ):
            jobs = {threads.submit(making.layer, spec, inputs): place for place, spec in enumerate(plan.layers)}
            check: Future[Any] = threads.submit(together.check, project, plan, lock, inputs.wheels)
            for job in as_completed([check, *jobs]):
                if job not in jobs:
                    check.result()
                    continue
                spec, layer = layers[jobs[job]] = job.result()
                refuse_large(plan, [layer])
                made(spec, layer)
    told.tell()
    carried_out = [layers[place] for place in range(len(plan.layers))]
    return put_together(replace(plan, layers=tuple(spec for spec, _ in carried_out)), [one for _, one in carried_out])


@contextmanager
def base(project: Project, plan: ImagePlan, *, frozen: bool) -> Iterator[Callable[[], BaseResult]]:
    """Begin to make the base's layers of a plan; what is yielded waits for them."""
    with bases.made(project, plan, frozen=frozen, stages=Stages(seconds={})) as made:
        yield made


def put_together(plan: ImagePlan, layers: Sequence[Layer]) -> tuple[ImagePlan, Image]:
    """The image of these layers, less those that turned out to hold nothing; and the plan less the same.

    Whether a wheel has modules to compile is known once it is read: one of data or of type stubs has none. Titles are
    the plan's, since the config tells them: what a cache calls a layer plays no part.
    """
    named = [(spec, replace(layer, title=spec.title)) for spec, layer in zip(plan.layers, layers, strict=True)]
    kept = [(spec, layer) for spec, layer in named if not layer.empty]
    image = append(Image(config=plan.config, name=plan.name), [layer for _, layer in kept])
    return replace(plan, layers=tuple(spec for spec, _ in kept)), image
