"""The whole story on one screen: Matrix → Target → Lock → ImagePlan → Image → ValidationReport."""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln import assembly, composition, fetch, locking, rootfs, sharing, validation
from torchkiln.console import note, progress, step, warn
from torchkiln.engines import table
from torchkiln.errors import (
    ImageError,
    LockError,
    MatrixError,
    PlanError,
    StaleLockError,
    StoreError,
    TorchkilnError,
    VerifyError,
    WheelError,
)
from torchkiln.layers import parts, suite
from torchkiln.layers.base import table as userlands
from torchkiln.lock import baselock, fit, layerlock, rows
from torchkiln.matrix.publishing import ANY
from torchkiln.matrix.target import publishing
from torchkiln.oci import document as documents
from torchkiln.oci import remote as remotes
from torchkiln.oci import served
from torchkiln.oci.image import manifest_descriptor, recorded
from torchkiln.oci.load import Foreign
from torchkiln.oci.push import pushing
from torchkiln.oci.store import Store
from torchkiln.oci.verify import lying
from torchkiln.oci.verify import verify as recompute
from torchkiln.plan import LOCK_LABEL, ImagePlan, plan, refuse_large
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torchkiln.engines import Engine
    from torchkiln.layers.base import BaseResult
    from torchkiln.lock.baselock import BaseLock
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.target import Target
    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Descriptor, Image, Layer
    from torchkiln.oci.push import Pushed, Pusher
    from torchkiln.oci.verify import Mismatch
    from torchkiln.project import Project
    from torchkiln.sharing import Family
    from torchkiln.specs import LayerSpec, SuiteSpec
    from torchkiln.validation import ValidationReport


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


def locked(project: Project, target: Target, known: Facts | None = None) -> tuple[Lock, BaseLock]:
    """The committed locks of a row, held against it; MatrixError for a row that the facts refuse."""
    locking.refuse(project, [target], known)
    validation.check_required([target], project.suite)
    return rows.read(project.locks, target), rows.packages(project.locks, target)


def planned(project: Project, target: Target) -> ImagePlan:
    """What an image of this row would be made of."""
    return _planned(project, target, *locked(project, target))


def _planned(
    project: Project, target: Target, lock: Lock, base: BaseLock, shipped: SuiteSpec | None = None
) -> ImagePlan:
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
                plans.append(_planned(project, target, *locks, shipped))
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
        return _planned(project, target, *locks, shipped), True
    except PlanError:
        if target.publish_target == ANY:
            raise
        return _planned(project, publishing(target, ANY, target.compression), *locks, shipped), False


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


def build(project: Project, target: Target, engine: Engine | None, wishes: Wishes = NO_WISHES) -> Built:
    """One row, from lock to report; without an engine the suite is not run."""
    began, stages = time.monotonic(), dict[str, float]()
    made: list[tuple[LayerSpec, Layer]] = []
    with step(target.ref), project.home.lock("use", shared=True), _pusher(project, wishes) as pusher:
        lock, packages = locked(project, target)
        _ask(project, pusher, wishes)
        packages = userlands.settle(project, target, packages, frozen=wishes.frozen)
        plan = _planned(project, target, lock, packages)
        here = engine is not None or not wishes.push
        plan, image = assembly.assemble(
            project,
            plan,
            lock,
            frozen=wishes.frozen,
            stages=stages,
            verify=wishes.verify,
            remote=_remote(project, plan, lock, wishes, stages, here=here),
            made=partial(_taken, made, pusher),
        )
        here = here or all(project.store.has(layer.descriptor) for layer in image.layers)
        digest = _kept(project, target, lock, image) if here else _passed_on(project, target, image, wishes.origin)
        subject = Foreign(name=target.id, image=image, store=project.store, digest=digest)
        note(f"{digest}: {len(image.layers)} layers, {image.compressed_size / 1e9:.2f} GB")
        if wishes.verify:
            with step("verify", stages):
                _hold_all(project, target, image)
        report = pushed = None
        if engine is not None:
            with step("validate", stages):
                report = _validated(project, target, lock, subject, engine)
        if pusher and _may_be_named(report, wishes):
            with step("push", stages):
                pushed = _named(project, pusher, image, wishes)
                composition.index(pusher.delivery.registry, plan, image, lock)
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
    if target.extra and _label(project, target) not in {"", lock.digest}:
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


def _pusher(project: Project, wishes: Wishes) -> AbstractContextManager[Pusher | None]:
    """What sends layers while others are made; leaving it gives up what was not named."""
    if not wishes.push:
        return nullcontext()
    options = {"environment": project.environment, "plain": wishes.plain, "source": wishes.origin}
    return pushing(wishes.push, project.store, **options)  # type: ignore[arg-type]


def _ask(project: Project, pusher: Pusher | None, wishes: Wishes) -> None:
    """Registries that can't be had, or refuse, are told of before anything is fetched or made."""
    if pusher:
        pusher.ask()
    elif wishes.origin:
        options = {"environment": project.environment, "plain": wishes.plain}
        with remotes.at(wishes.origin, project.store, **options) as remote:  # type: ignore[arg-type]
            remote.registry.admitted()


def _remote(
    project: Project, plan: ImagePlan, lock: Lock, wishes: Wishes, stages: dict[str, float], *, here: bool
) -> Mapping[str, Layer]:
    """Layers by key that lie in a registry and may stay there."""
    if not wishes.origin:
        return {}
    options = {"environment": project.environment, "plain": wishes.plain}
    with step("compose", stages), remotes.at(wishes.origin, project.store, **options) as remote:  # type: ignore[arg-type]
        return composition.compose(project, plan, lock, remote, here=here, frozen=wishes.frozen)


def _may_be_named(report: ValidationReport | None, wishes: Wishes) -> bool:
    """Whether a registry may show it: no check failed, and where a pass is required, it passed."""
    verdict = report.verdict if report else "incomplete"
    return verdict == "pass" or (verdict == "incomplete" and not wishes.require_pass)


def _named(project: Project, pusher: Pusher, image: Image, wishes: Wishes) -> Pushed:
    """Wait for the last layer, set the tag, and look at what the registry serves then."""
    pushed = pusher.finish(image)
    exact = f"{pushed.name.rpartition(':')[0]}@{pushed.digest}"
    served.check(exact, environment=project.environment, plain=wishes.plain, whole=wishes.verify)
    return pushed


def _hold_all(project: Project, target: Target, image: Image) -> None:
    """VerifyError for a blob that is not what the image says, also of what was not made just now."""
    found = recompute(project.store, image)
    for digest in lying(found):
        project.store.discard(digest)
    if found:
        told = "\n".join(str(one) for one in found)
        raise VerifyError(f"digests do not hold:\n{told}", where=target.ref, remedy=fit.build(target))


@contextmanager
def subject(project: Project, target: Target, reference: str = "") -> Iterator[Foreign]:
    """The built image of a row, or the one at `oci:DIR[:REF]` or `docker-daemon:NAME`, as long as it is needed."""
    if not reference:
        manifest_of(project, target)
        hold_lock(project, target)
    with (
        project.home.lock("use", shared=True),
        tempfile.TemporaryDirectory(prefix="image-", dir=project.home.temporary) as scratch,
    ):
        yield _opened(project, target, reference, Store(Path(scratch)))


def _opened(project: Project, target: Target, reference: str, scratch: Store) -> Foreign:
    """The image; an error about its content says what to do about it."""
    try:
        return table.open_image(reference or f"oci:{project.home.store}:{target.ref}", scratch)
    except (ImageError, StoreError, VerifyError) as error:
        if (error.remedy and not isinstance(error, StoreError)) or reference.startswith("docker-daemon:"):
            raise
        remedy = f"./inv verify {fit.options(target)} removes what is damaged, {fit.build(target)} remakes it"
        if reference:
            remedy = "copy the image again from where it came; ./inv verify --image oci:DIR:REF tells all that is wrong"
        raise type(error)(error.what, where=error.where, remedy=remedy) from error


def manifest_of(project: Project, target: Target) -> Descriptor:
    """What the store calls the built image of a row; StoreError if there is none."""
    found = project.store.refs().get(target.ref)
    if found is None:
        remedy = f"{fit.build(target)}, with --from HOST/REPOSITORY if its layers lie in a registry"
        raise StoreError(f"{target.ref} is not built", where=str(project.home.store), remedy=remedy)
    return found


def verify(project: Project, target: Target) -> tuple[Mismatch, ...]:
    """Everything wrong with the built image of a row; blobs that lie are removed, so that `build` makes them anew."""
    with project.home.lock("use", shared=True):
        found = recompute(project.store, manifest_of(project, target))
        for digest in lying(found):
            project.store.discard(digest)
    if not found:
        hold_lock(project, target)
    return found


def hold_lock(project: Project, target: Target) -> None:
    """Warn of an image that was built from another lock than the row has now.

    StoreError for one with a user's additions: it may be that of another list with the same name.
    """
    built, now = _label(project, target), ""
    try:
        now = rows.read(project.locks, target).digest
    except (LockError, StaleLockError) as error:
        why = error.what
    else:
        why = "it has changed since, or was another list's" if target.extra else "it has changed since"
    if not built or built == now:
        return
    what, again = f"{target.ref} was built from another lock than the row has now", fit.build(target)
    if target.extra:
        raise StoreError(f"{what}: {why}", where=str(target.extra.file), remedy=again)
    warn(f"{what}: {why}; {again} builds it anew")


def _label(project: Project, target: Target) -> str:
    """The digest of the lock that the built image of a row names; empty if there is none, or it can't be read."""
    found = project.store.refs().get(target.ref)
    try:
        manifest = documents.manifest(project.store.read(found.digest)) if found else None
        config = documents.document(project.store.read(manifest.config.digest)).config if manifest else None
    except (ImageError, StoreError):
        return ""
    return config.labels.get(LOCK_LABEL, "") if config else ""


def engine(project: Project, name: str, subject: Foreign | None = None) -> Engine:
    """The engine of that name, for built images or for that one."""
    store = subject.store if subject else project.store
    return table.pick(name, store, partial(rootfs.tree, project.home, store), subject)


def validate(
    project: Project, target: Target, subject: Foreign, engine: Engine | None, *, checks: Sequence[str] = ()
) -> ValidationReport:
    """Hold an image against a row."""
    return _validated(project, target, locked(project, target)[0], subject, engine, checks=checks)


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
    lock, _ = locked(project, target)
    with project.home.lock("use", shared=True):
        return fetch.fetch(project.home, lock, environment=project.environment)


def base(project: Project, target: Target, *, frozen: bool = False) -> BaseResult:
    """Only the base layers of a row."""
    with project.home.lock("use", shared=True):
        lock, packages = locked(project, target)
        settled = userlands.settle(project, target, packages, frozen=frozen)
        with assembly.base(project, _planned(project, target, lock, settled), frozen=frozen) as made:
            result = made()
    return replace(result, difference=(*result.difference, *baselock.difference(packages, settled)))
