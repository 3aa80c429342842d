"""ImagePlan → Image: make the layers that are not known yet, each recorded as it is made, and put all of them together.

Guarantees: a killed build goes on where it was, since every finished layer is in the index; two builds at once share
layers, since the second waits for the first; nothing is fetched for layers that are known.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torchkiln import fetch
from torchkiln.console import step
from torchkiln.errors import HashMismatchError, WheelError
from torchkiln.layers import bytecode, environment, pool, suite, toolkit, wheel
from torchkiln.layers.base import table
from torchkiln.lock import closure
from torchkiln.oci import digest as digests
from torchkiln.oci.image import Image, append, recorded
from torchkiln.specs import (
    AdoptionSpec,
    BaseSpec,
    BytecodeSpec,
    EnvironmentSpec,
    ForeignSpec,
    SuiteSpec,
    ToolkitSpec,
    WheelSpec,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torchkiln.layers.base import BaseResult
    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.oci.image import Layer
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project
    from torchkiln.specs import LayerSpec


def assemble(
    project: Project, plan: ImagePlan, lock: Lock, *, frozen: bool, stages: dict[str, float]
) -> tuple[ImagePlan, Image]:
    """The image of a plan, and the plan as it was carried out; `stages` is told the seconds of each."""
    with project.home.lock("assemble"):  # a second build waits, and then finds the layers it shares
        known = {spec.key: layer for spec in plan.layers if (layer := _known(project, spec)) is not None}
        missing = [spec for spec in plan.layers if spec.key not in known]
        with base(project, plan, frozen=frozen) as base_result:
            paths = _wheels(project, plan, lock, stages, missing)
            with step("wheels to layers", stages), _evicting(lock, paths):
                known |= _converted(project, [spec for spec in missing if isinstance(spec, WheelSpec)], paths)
            with step("base", stages):
                made = base_result()
        with step("bytecode, environment, suite", stages), _evicting(lock, paths):
            compiled = [spec for spec in missing if isinstance(spec, BytecodeSpec)]
            known |= _compiled(project, made.layers, compiled, paths, place=bases(plan)[0].base.interpreter)
            known |= {
                spec.key: _small(project, spec, paths)
                for spec in missing
                if isinstance(spec, EnvironmentSpec | ToolkitSpec | SuiteSpec)
            }
    known |= {spec.key: layer for spec, layer in zip(bases(plan), made.layers, strict=True)}
    return put_together(plan, [known[spec.key] for spec in plan.layers])


def put_together(plan: ImagePlan, layers: Sequence[Layer]) -> tuple[ImagePlan, Image]:
    """The image of these layers, less those that turned out to hold nothing; and the plan less the same.

    Whether a wheel has modules to compile is known once it is read: one of data or of type stubs has none.
    """
    kept = [(spec, layer) for spec, layer in zip(plan.layers, layers, strict=True) if not layer.empty]
    image = append(Image(config=plan.config), [layer for _, layer in kept])
    return replace(plan, layers=tuple(spec for spec, _ in kept)), image


def _known(project: Project, spec: LayerSpec) -> Layer | None:
    """A layer that was made before and is still in the store; the base keeps its own account."""
    own = isinstance(spec, BaseSpec | ForeignSpec | AdoptionSpec)
    entry = None if own else project.home.lookup(spec.key)
    layer = recorded(entry)
    return layer if layer is not None and project.store.has(layer.descriptor) else None


def _record(project: Project, spec: LayerSpec, layer: Layer) -> None:
    project.home.record(spec.key, layer.to_json())


@contextmanager
def base(project: Project, plan: ImagePlan, *, frozen: bool) -> Iterator[Callable[[], BaseResult]]:
    """The base's layers, made in a process of their own while wheels are fetched and converted."""
    with pool.beside(partial(table.build, frozen=frozen), project, bases(plan)) as made:
        yield made


def bases(plan: ImagePlan) -> list[BaseSpec | ForeignSpec | AdoptionSpec]:
    """The specs of the base's layers, lowest first."""
    return [spec for spec in plan.layers if isinstance(spec, BaseSpec | ForeignSpec | AdoptionSpec)]


def _wheels(
    project: Project, plan: ImagePlan, lock: Lock, stages: dict[str, float], missing: Sequence[LayerSpec]
) -> Mapping[str, Path]:
    """Every wheel that a missing layer is made from, and all of them once, to see that they go together."""
    compared = f"together-{_python(plan)}-{lock.digest.removeprefix('sha256:')}"
    needed = {pin for spec in missing if isinstance(spec, WheelSpec | BytecodeSpec | ToolkitSpec) for pin in spec.pins}
    if project.home.lookup(compared) is None:
        needed = set(lock.pins)
    pins = tuple(pin for pin in lock.pins if pin in needed)
    with step("fetch", stages):
        paths = fetch.fetch(project.home, replace(lock, pins=pins), environment=project.environment)
    if project.home.lookup(compared) is None:
        with _evicting(lock, paths):
            _check_together(plan, lock, paths)
        project.home.record(compared, {"conflicts": 0})
    return paths


def _check_together(plan: ImagePlan, lock: Lock, paths: Mapping[str, Path]) -> None:
    """None asks for what is not pinned, and none writes another's files."""
    requires = {pin.name: wheel.requirements(paths[pin.sha256]) for pin in lock.pins}
    closure.check(lock, requires, python=_python(plan), target=plan.target)
    wheel.check_conflicts({pin: paths[pin.sha256] for pin in lock.pins})


def _python(plan: ImagePlan) -> str:
    """Version of the base's Python, for which markers hold; the minor where no more is known."""
    *_, base = bases(plan)  # the one that knows the lock
    assert not isinstance(base, ForeignSpec)  # noqa: S101
    return base.lock.python or base.base.python


@contextmanager
def _evicting(lock: Lock, paths: Mapping[str, Path]) -> Iterator[None]:
    """Tell a wheel that is bad from a copy that was damaged on this disk: such copies are thrown out.

    Only when something is wrong are the wheels hashed again; WheelError passes if all are what the lock says.
    """
    try:
        yield
    except WheelError as error:
        changed = [paths[pin.sha256] for pin in lock.pins if pin.sha256 in paths and _changed(pin, paths[pin.sha256])]
        if not changed:
            raise
        for path in changed:
            path.unlink()
        raise HashMismatchError(
            f"{', '.join(path.name for path in changed)} changed on this disk after the download: {error.what}",
            where=", ".join(str(path.parent) for path in changed),
            remedy="run it again: the damaged copy is gone and will be fetched anew",
        ) from error


def _changed(pin: Pin, path: Path) -> bool:
    return digests.of_file(path)[0] != f"sha256:{pin.sha256}"


def _converted(project: Project, specs: Sequence[WheelSpec], paths: Mapping[str, Path]) -> dict[str, Layer]:
    layers = wheel.build_all(project.store, specs, paths, partial(_record, project))
    return {spec.key: layer for spec, layer in zip(specs, layers, strict=True)}


def _compiled(
    project: Project, base: Sequence[Layer], specs: Sequence[BytecodeSpec], paths: Mapping[str, Path], *, place: str
) -> dict[str, Layer]:
    layers = bytecode.build_all(project.home, project.store, base, specs, paths, place=place)
    for spec in specs:
        _record(project, spec, layers[spec.key])
    return layers


def _small(project: Project, spec: EnvironmentSpec | ToolkitSpec | SuiteSpec, paths: Mapping[str, Path]) -> Layer:
    if isinstance(spec, EnvironmentSpec):
        layer = environment.build(project.store, spec)
    elif isinstance(spec, ToolkitSpec):
        layer = toolkit.build(project.store, spec, paths)
    else:
        layer = suite.build(project.store, spec, project.suite)
    _record(project, spec, layer)
    return layer
