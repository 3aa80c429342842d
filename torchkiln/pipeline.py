"""The whole story on one screen: Matrix → Target → Lock → ImagePlan → Image → ValidationReport."""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln import fetch, rootfs, validation
from torchkiln.console import note, progress, step
from torchkiln.engines import table
from torchkiln.errors import StoreError
from torchkiln.home import write_atomically
from torchkiln.layers import bytecode, environment, pool, suite, wheel
from torchkiln.layers.base import debian
from torchkiln.lock import fit, lockfile, resolve
from torchkiln.matrix import compat, facts, schema
from torchkiln.matrix.target import select
from torchkiln.oci.image import Image, Layer, append
from torchkiln.oci.load import Foreign
from torchkiln.oci.store import Store
from torchkiln.plan import BaseSpec, BytecodeSpec, EnvironmentSpec, ImagePlan, SuiteSpec, WheelSpec, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torchkiln.engines import Engine
    from torchkiln.home import Home
    from torchkiln.layers.base.debian import BaseResult
    from torchkiln.lock.lockfile import BaseLock, Lock
    from torchkiln.matrix.target import Target
    from torchkiln.oci.digest import Digest
    from torchkiln.plan import LayerSpec
    from torchkiln.validation import ValidationReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A checkout, a cache and an environment: everything the stages take from outside."""

    root: Path
    home: Home
    environment: Mapping[str, str]

    @property
    def store(self) -> Store:
        """Where images lie."""
        return Store(self.home.store)

    @property
    def locks(self) -> Path:
        """The folder of locks."""
        return self.root / "images" / "locks"

    @property
    def suite(self) -> Path:
        """The validation suite."""
        return self.root / "validate"

    def base_lock(self, target: Target) -> Path:
        """The package list of a row's base."""
        return self.locks / f"base-{target.base.id}.txt"


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


def targets(project: Project, patterns: Sequence[str] = ()) -> tuple[Target, ...]:
    """The rows that ids and globs name; all without any."""
    return select(schema.load(project.root / "matrix.yaml").targets, patterns)


def locked(project: Project, target: Target) -> tuple[Lock, BaseLock]:
    """The committed locks of a row, held against it; MatrixError for a row that the facts refuse."""
    compat.refuse(target, facts.read())
    remedy = f"./inv lock --target {target.id}"
    lock = lockfile.read(project.locks / target.lock_name, remedy=remedy)
    fit.check_fresh(lock, target)
    fit.check_fits(lock, target)
    return lock, lockfile.read_base(project.base_lock(target), remedy=f"{remedy} --base")


def planned(project: Project, target: Target) -> ImagePlan:
    """What an image of this row would be made of."""
    lock, base = locked(project, target)
    shipped = suite.spec(project.suite, validation.expectation(target, lock))
    return plan(target, lock, base, shipped, recipe=debian.recipe().digest)


def relock(project: Project, targets: Sequence[Target], *, bases: bool) -> tuple[Path, ...]:
    """Resolve anew and write the locks that rows share, and on request their bases' package lists; what was written."""
    texts: dict[Path, str] = {}
    for target in targets:
        path, listed = project.locks / target.lock_name, project.base_lock(target)
        if path not in texts:
            with step(f"lock {path.name}"):
                texts[path] = lockfile.render(resolve.resolve(target, project.environment))
        if bases and listed not in texts:
            packages = debian.packages(
                project.home, target.base, recipe=debian.recipe(), environment=project.environment
            )
            texts[listed] = lockfile.render_base(packages)
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return tuple(texts)


def build(project: Project, target: Target, engine: Engine | None, *, frozen: bool = False) -> Built:
    """One row, from lock to report; without an engine the suite is not run."""
    began, stages = time.monotonic(), dict[str, float]()
    with step(target.id), project.home.lock("use", shared=True):
        plan = planned(project, target)
        image = assemble(project, plan, locked(project, target)[0], frozen=frozen, stages=stages)
        digest = project.store.put_image(image, target.id).digest
        made = Foreign(name=target.id, image=image, store=project.store, digest=digest)
        note(f"{digest}: {len(image.layers)} layers, {image.compressed_size / 1e9:.2f} GB")
        report = None
        if engine is not None:
            with step("validate", stages):
                report = validate(project, target, made, engine)
    seconds = round(time.monotonic() - began, 3)
    return Built(target=target, plan=plan, image=image, digest=digest, seconds=seconds, stages=stages, report=report)


@contextmanager
def subject(project: Project, target: Target, reference: str = "") -> Iterator[Foreign]:
    """The built image of a row, or the one at `oci:DIR[:REF]` or `docker-daemon:NAME`, as long as it is needed."""
    if not reference and target.id not in project.store.refs():
        remedy = f"./inv build --target {target.id}"
        raise StoreError(f"{target.id} is not built", where=str(project.home.store), remedy=remedy)
    with (
        project.home.lock("use", shared=True),
        tempfile.TemporaryDirectory(prefix="image-", dir=project.home.temporary) as scratch,
    ):
        yield table.open_image(reference or f"oci:{project.home.store}:{target.id}", Store(Path(scratch)))


def engine(project: Project, name: str, store: Store | None = None) -> Engine:
    """The engine of that name, for images of a store."""
    store = store or project.store
    return table.pick(name, store, partial(rootfs.tree, project.home, store))


def validate(
    project: Project, target: Target, subject: Foreign, engine: Engine | None, *, checks: Sequence[str] = ()
) -> ValidationReport:
    """Hold an image against a row."""
    lock, _ = locked(project, target)
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


def assemble(project: Project, plan: ImagePlan, lock: Lock, *, frozen: bool, stages: dict[str, float]) -> Image:
    """Make the layers that are not known yet, and put all of them together."""
    with project.home.lock("assemble"):  # a second build waits, and then finds the layers it shares
        known = {spec.key: layer for spec in plan.layers if (layer := _known(project, spec)) is not None}
        missing = [spec for spec in plan.layers if spec.key not in known]
        with _base(project, plan, frozen=frozen) as base:
            paths = _wheels(project, lock, missing, stages)
            with step("wheels to layers", stages):
                known |= _converted(project, [spec for spec in missing if isinstance(spec, WheelSpec)], paths)
            with step("base", stages):
                made = base()
        with step("bytecode, environment, suite", stages):
            known |= _compiled(project, made.layer, [spec for spec in missing if isinstance(spec, BytecodeSpec)], paths)
            known |= {
                spec.key: _small(project, spec) for spec in missing if isinstance(spec, EnvironmentSpec | SuiteSpec)
            }
    layers = [made.layer if isinstance(spec, BaseSpec) else known[spec.key] for spec in plan.layers]
    return append(Image(config=plan.config), layers)


def wheels(project: Project, target: Target) -> Mapping[str, Path]:
    """Every wheel of a row at hand, by sha256."""
    lock, _ = locked(project, target)
    return fetch.fetch(project.home, lock, environment=project.environment)


def base(project: Project, target: Target, *, frozen: bool = False) -> BaseResult:
    """Only the base layer of a row."""
    with project.home.lock("use", shared=True), _base(project, planned(project, target), frozen=frozen) as made:
        return made()


def _known(project: Project, spec: LayerSpec) -> Layer | None:
    """A layer that was made before and is still in the store; the base keeps its own account."""
    entry = None if isinstance(spec, BaseSpec) else project.home.lookup(spec.key)
    layer = Layer.from_json(entry) if entry else None
    return layer if layer is not None and project.store.has(layer.descriptor) else None


def _record(project: Project, spec: LayerSpec, layer: Layer) -> None:
    project.home.record(spec.key, layer.to_json())


@contextmanager
def _base(project: Project, plan: ImagePlan, *, frozen: bool) -> Iterator[Callable[[], BaseResult]]:
    """The base layer, made in a process of its own while wheels are fetched and converted."""
    (spec,) = [spec for spec in plan.layers if isinstance(spec, BaseSpec)]
    build = partial(debian.build, recipe=debian.recipe(), frozen=frozen, environment=project.environment)
    with pool.beside(build, project.home, project.store, spec) as made:
        yield made


def _wheels(project: Project, lock: Lock, missing: Sequence[LayerSpec], stages: dict[str, float]) -> Mapping[str, Path]:
    """Every wheel that a missing layer is made from, and all of them once, to see that none writes another's files."""
    compared = f"conflicts-{lock.digest.removeprefix('sha256:')}"
    needed = {pin for spec in missing if isinstance(spec, WheelSpec | BytecodeSpec) for pin in spec.pins}
    if project.home.lookup(compared) is None:
        needed = set(lock.pins)
    pins = tuple(pin for pin in lock.pins if pin in needed)
    with step("fetch", stages):
        paths = fetch.fetch(project.home, replace(lock, pins=pins), environment=project.environment)
    if project.home.lookup(compared) is None:
        wheel.check_conflicts({pin: paths[pin.sha256] for pin in pins})
        project.home.record(compared, {"conflicts": 0})
    return paths


def _converted(project: Project, specs: Sequence[WheelSpec], paths: Mapping[str, Path]) -> dict[str, Layer]:
    layers = wheel.build_all(project.store, specs, paths, partial(_record, project))
    return {spec.key: layer for spec, layer in zip(specs, layers, strict=True)}


def _compiled(
    project: Project, base: Layer, specs: Sequence[BytecodeSpec], paths: Mapping[str, Path]
) -> dict[str, Layer]:
    layers = bytecode.build_all(project.home, project.store, base, specs, paths)
    for spec in specs:
        _record(project, spec, layers[spec.key])
    return layers


def _small(project: Project, spec: EnvironmentSpec | SuiteSpec) -> Layer:
    if isinstance(spec, EnvironmentSpec):
        layer = environment.build(project.store, spec)
    else:
        layer = suite.build(project.store, spec, project.suite)
    _record(project, spec, layer)
    return layer
