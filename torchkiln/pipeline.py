"""The whole story on one screen: Matrix → Target → Lock → ImagePlan → Image → ValidationReport."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from torchkiln import assembly, composition, fetch, finished, planning, registries, rootfs, validation
from torchkiln.console import note, progress, step, warn
from torchkiln.engines import table
from torchkiln.layers.base import table as userlands
from torchkiln.lock import baselock, fit
from torchkiln.oci.image import manifest_descriptor
from torchkiln.oci.load import Foreign

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torchkiln.engines import Engine
    from torchkiln.layers.base import BaseResult
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.target import Target
    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Image, Layer
    from torchkiln.oci.push import Pushed, Pusher
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project
    from torchkiln.specs import LayerSpec
    from torchkiln.validation import ValidationReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a build may be asked for besides."""

    frozen: bool = False
    """Refuse a base that is not what its lock says."""
    verify: bool = False
    """Make every layer anew and hash all, though it is known."""
    push: str = ""
    """`HOST/REPOSITORY:TAG`: send each layer as it is made, and name the image once no check failed."""
    plain: Sequence[str] = ()
    """Hosts that may speak plain HTTP."""
    require_pass: bool = False
    """Name it only if every required check passed."""
    origin: str = ""
    """`HOST/REPOSITORY`: what it has of the layers need not be made."""


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What `build` made of one target."""

    target: Target
    plan: ImagePlan
    image: Image
    digest: Digest
    seconds: float
    stages: Mapping[str, float]
    report: ValidationReport | None
    pushed: Pushed | None = None
    """Where it is besides; None if it was not to be pushed, or a check failed."""
    made: Sequence[tuple[LayerSpec, Layer]] = ()
    """Every layer of the plan as it was carried out, also those that turned out empty."""
    here: bool = True
    """Whether it is in the store; layers of a registry that only another registry needs are not."""


def build(project: Project, target: Target, engine: Engine | None, wishes: Wishes = NO_WISHES) -> Built:
    """One row, from lock to report; without an engine the suite is not run."""
    began, stages = time.monotonic(), dict[str, float]()
    made: list[tuple[LayerSpec, Layer]] = []
    sending = registries.sending(project, wishes.push, plain=wishes.plain, origin=wishes.origin)
    with fit.named(target), step(target.ref), project.home.lock("use", shared=True), sending as pusher:
        lock, packages = planning.locked(project, target)
        registries.ask(project, pusher, wishes.origin, plain=wishes.plain)
        packages = userlands.settle(project, target, packages, frozen=wishes.frozen)
        planned = plan = planning.planned_from(project, target, lock, packages)
        here = engine is not None or not wishes.push
        there: Mapping[str, Layer] = {}
        if wishes.origin:
            with registries.at(project, wishes.origin, plain=wishes.plain, row=fit.made(target)) as remote:
                there = composition.compose(project, plan, lock, remote, here=here, frozen=wishes.frozen, stages=stages)
            registries.distrust(pusher, remote)
        plan, image = assembly.assemble(
            project,
            plan,
            lock,
            frozen=wishes.frozen,
            stages=stages,
            verify=wishes.verify,
            remote=there,
            made=partial(_taken, made, pusher),
        )
        here = here or all(project.store.has(layer.descriptor) for layer in image.layers)
        digest = _kept(project, target, lock, image) if here else _passed_on(project, target, image, wishes.origin)
        subject = Foreign(name=target.id, image=image, store=project.store, digest=digest)
        note(f"{digest}: {len(image.layers)} layers, {image.compressed_size / 1e9:.2f} GB")
        if wishes.verify:
            with step("verify", stages):
                finished.hold_digests(project, target, image)
        report = pushed = None
        if engine is not None:
            with step("validate", stages):
                report = _validated(project, target, lock, subject, engine)
        if pusher and _may_be_named(report, wishes):
            with step("push", stages):
                made_of = (planned, plan, image, lock)
                pushed = registries.finish(project, pusher, made_of, plain=wishes.plain, whole=wishes.verify)
    return Built(
        target=target,
        plan=plan,
        image=image,
        digest=digest,
        seconds=round(time.monotonic() - began, 3),
        stages=stages,
        report=report,
        pushed=pushed,
        made=made,
        here=here,
    )


def _kept(project: Project, target: Target, lock: Lock, image: Image) -> Digest:
    """Let the row's name in the store stand for an image."""
    if target.extra and finished.lock_digest(project, target) not in {"", lock.digest}:
        note("it takes the place of an image of that name, which was built from another lock")
    return project.store.put_image(image, target.ref).digest


def _passed_on(project: Project, target: Target, image: Image, origin: str) -> Digest:
    """An image whose layers are not all here gets no name in the store: validate, shell, load and verify need them."""
    digest, before = manifest_descriptor(image).digest, project.store.refs().get(target.ref)
    note(f"its layers stay where they are: {fit.build(target)} --from {origin} brings them here")
    if before and before.digest != digest:
        warn(f"{target.ref} is another image here: {before.digest}")
    return digest


def _taken(made: list[tuple[LayerSpec, Layer]], pusher: Pusher | None, spec: LayerSpec, layer: Layer) -> None:
    """Note a layer as it is made, and send it."""
    made.append((spec, layer))
    if pusher and not layer.empty:
        pusher.offer(layer)


def _may_be_named(report: ValidationReport | None, wishes: Wishes) -> bool:
    """Whether a registry may show it: no check failed, and where a pass is required, it passed."""
    verdict = report.verdict if report else "incomplete"
    return verdict == "pass" or (verdict == "incomplete" and not wishes.require_pass)


def engine(project: Project, name: str, subject: Foreign | None = None) -> Engine:
    """The engine of that name, for built images or for that one."""
    store = subject.store if subject else project.store
    return table.pick(name, store, partial(rootfs.tree, project.home, store), subject)


def validate(
    project: Project, target: Target, subject: Foreign, engine: Engine | None, *, checks: Sequence[str] = ()
) -> ValidationReport:
    """Hold an image against a row."""
    return _validated(project, target, planning.locked(project, target)[0], subject, engine, checks=checks)


def _validated(
    project: Project, target: Target, lock: Lock, subject: Foreign, engine: Engine | None, *, checks: Sequence[str] = ()
) -> ValidationReport:
    return validation.validate(
        engine,
        subject.image,
        target,
        lock,
        project.home,
        suite=project.suite,
        checks=checks,
        store=subject.store,
        digest=subject.digest,
        output=progress,
    )


def wheels(project: Project, target: Target) -> Mapping[str, Path]:
    """Every wheel of a row at hand, by sha256."""
    lock, _ = planning.locked(project, target)
    with project.home.lock("use", shared=True):
        return fetch.fetch(project.home, lock, environment=project.environment)


def base(project: Project, target: Target, *, frozen: bool = False) -> BaseResult:
    """Only the base layers of a row."""
    with fit.named(target), project.home.lock("use", shared=True):
        lock, packages = planning.locked(project, target)
        settled = userlands.settle(project, target, packages, frozen=frozen)
        with assembly.base(project, planning.planned_from(project, target, lock, settled), frozen=frozen) as made:
            result = made()
    return replace(result, difference=(*result.difference, *baselock.difference(packages, settled)))
