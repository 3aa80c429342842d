"""One layer of a plan: wait for what it is made from, then find it or have its maker make it.

Each layer has a thread of its own, which mostly waits. What computes is bounded: wheels are converted in a pool of
processes, modules are compiled by as many interpreters as there are processors.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from torchkiln.assembly import together
from torchkiln.assembly.arrival import arriving
from torchkiln.layers import bytecode, environment, pool, recompress, suite, toolkit, wheel
from torchkiln.layers.base import BaseResult, debian, table
from torchkiln.oci.image import recorded
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
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from torchkiln.assembly.arrival import Arrivals
    from torchkiln.assembly.ledger import Ledger
    from torchkiln.assembly.stages import Stages
    from torchkiln.layers.bytecode import Interpreter
    from torchkiln.layers.pool import Pool
    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.oci.image import Layer
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project
    from torchkiln.specs import LayerSpec

    BasePart = BaseSpec | ForeignSpec | AdoptionSpec

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What layers are made from, as it comes, and who makes them."""

    project: Project
    ledger: Ledger
    stages: Stages
    wheels: Arrivals
    parts: tuple[BasePart, ...]
    """Of the base, lowest first."""
    base: Callable[[], BaseResult]
    """Waits for it."""
    interpreter: Callable[[], Interpreter]
    """Waits for the base and starts its Python."""
    converters: Pool[Layer]
    compilers: Executor
    turns: threading.Semaphore
    """Bounds how many layers of bytecode are in memory."""
    presses: threading.Semaphore
    """Bounds how many layers are compressed at a time."""
    stop: threading.Event
    """Nobody needs any more what is being compressed."""


@contextmanager
def inputs(plan: ImagePlan, lock: Lock, ledger: Ledger, stages: Stages, *, frozen: bool) -> Iterator[Inputs]:
    """Begin to fetch and to make the base, as far as anything is missing; leaving ends all of it."""
    project, cores = ledger.project, len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        base = _other_base(plan, ledger) or stack.enter_context(base_of(project, plan, frozen=frozen, stages=stages))
        stop = threading.Event()
        stack.callback(stop.set)
        place = bases(plan)[0].base.interpreter
        yield Inputs(
            project=project,
            ledger=ledger,
            stages=stages,
            wheels=stack.enter_context(arriving(project, lock, needed(plan, lock, ledger), stages)),
            parts=bases(plan),
            base=base,
            interpreter=_once(partial(_interpreter, project, plan, base, place)),
            converters=stack.enter_context(pool.started(wheel.job)),
            compilers=stack.enter_context(_ending(ThreadPoolExecutor(cores))),
            turns=threading.Semaphore(cores),
            presses=threading.Semaphore(recompress.at_once()),
            stop=stop,
        )


def layer(spec: LayerSpec, given: Inputs) -> tuple[LayerSpec, Layer]:
    """The layer of a spec as the image has it, and the spec as it was carried out.

    The archive may have moved on from the base's lock. LayerMismatchError if it is not the locked layer; then it is not
    recorded.
    """
    own: Layer | None = None
    if isinstance(spec, BaseSpec | ForeignSpec | AdoptionSpec):
        own = given.base().layers[given.parts.index(spec)]
        spec = _as_made(spec, own, given)
    elif isinstance(spec, BytecodeSpec):
        spec = replace(spec, python=given.base().packages.python or spec.python)
    found = given.ledger.find(spec)
    if found is None:
        found = _compressed(spec, _gzip(spec, given) if own is None else _held(spec, own, given), given)
    return spec, found


def _held(spec: LayerSpec, layer: Layer, given: Inputs) -> Layer:
    given.ledger.hold(spec, layer)
    return layer


def _gzip(spec: LayerSpec, given: Inputs) -> Layer:
    """The layer as it is made first, whatever the image's compression."""
    found = given.ledger.find_gzip(spec)
    if found is None:
        found = _made(spec, given)
        given.ledger.hold(spec, found)
        given.ledger.record(spec, found)
    return found


def _compressed(spec: LayerSpec, layer: Layer, given: Inputs) -> Layer:
    """The layer as the image has it; one that is empty, or that others made, stays as it is."""
    key = given.ledger.key(spec)
    if key == spec.key or layer.empty:
        return layer
    with given.presses, given.stages.piece("compress"):
        found = recompress.recompress(given.project.store, layer, given.ledger.compression, stop=given.stop)
    given.ledger.hold(spec, found, key)
    given.ledger.record(spec, found, key)
    return found


def _made(spec: LayerSpec, given: Inputs) -> Layer:
    """What the maker of its kind makes of it, once all of that is there."""
    home, store, stages = given.project.home, given.project.store, given.stages
    if isinstance(spec, WheelSpec):
        paths, weight = given.wheels.of(spec.pins), sum(pin.weight for pin in spec.pins)
        with stages.piece("wheels to layers"):
            known = given.ledger.expected(spec)
            return given.converters.submit(store, spec, paths, known, home.boundaries, weight=weight).result()
    if isinstance(spec, BytecodeSpec):
        start, paths = given.interpreter(), given.wheels.of(spec.pins)
        with given.turns, stages.piece("bytecode"):
            return bytecode.build(home, store, spec, paths, start, processes=given.compilers)
    if isinstance(spec, ToolkitSpec):
        return toolkit.build(store, spec, given.wheels.of(spec.pins))
    if isinstance(spec, EnvironmentSpec):
        return environment.build(store, spec)
    assert isinstance(spec, SuiteSpec)  # noqa: S101  a base is not made here
    return suite.build(store, spec, given.project.suite)


def needed(plan: ImagePlan, lock: Lock, ledger: Ledger) -> list[Pin]:
    """The wheels that a missing layer is made from; all of them where nobody has seen whether they go together."""
    if not together.known(ledger.project, plan, lock):
        return list(lock.pins)
    made_of = [spec for spec in plan.layers if isinstance(spec, WheelSpec | BytecodeSpec | ToolkitSpec)]
    missing = {pin for spec in made_of if not ledger.spares(spec) for pin in spec.pins}
    return [pin for pin in lock.pins if pin in missing]


def bases(plan: ImagePlan) -> tuple[BasePart, ...]:
    """The specs of the base's layers, lowest first."""
    return tuple(spec for spec in plan.layers if isinstance(spec, BaseSpec | ForeignSpec | AdoptionSpec))


def _as_made(spec: BasePart, made: Layer, given: Inputs) -> BasePart:
    """The spec of what the base holds: where the archive has moved on, that is another key, and remembered by it."""
    base = given.base()
    if not isinstance(spec, BaseSpec) or not base.difference:
        return spec
    spec = replace(spec, lock=base.packages)
    debian.remember(given.project.home, spec.key, made, base.packages)
    return spec


@contextmanager
def base_of(project: Project, plan: ImagePlan, *, frozen: bool, stages: Stages) -> Iterator[Callable[[], BaseResult]]:
    """The base's layers, made in a process of their own meanwhile, unless they are at hand."""
    if all(_at_hand(project, spec) for spec in bases(plan)):
        yield _once(partial(table.build, project, bases(plan), frozen=frozen))
        return
    with pool.beside(partial(table.build, frozen=frozen), project, bases(plan)) as made:

        def waited() -> BaseResult:
            with stages.piece("base"):
                return made()

        yield waited


def _at_hand(project: Project, spec: BasePart) -> bool:
    layer = spec.layer if isinstance(spec, ForeignSpec) else recorded(project.home.lookup(spec.key))
    return layer is not None and project.store.has(layer.descriptor)


def _other_base(plan: ImagePlan, ledger: Ledger) -> Callable[[], BaseResult] | None:
    """A base that need not be made: one that lies elsewhere, if nothing has to be compiled by its interpreter.

    Or one that is here, but only in the image's compression.
    """
    *_, top = bases(plan)
    layers = [layer for spec in bases(plan) if (layer := _as_in_image(spec, ledger)) is not None]
    compiled = [spec for spec in plan.layers if isinstance(spec, BytecodeSpec)]
    if len(layers) < len(bases(plan)) or isinstance(top, ForeignSpec):
        return None
    here = all(ledger.project.store.has(layer.descriptor) for layer in layers)
    if not here and not all(ledger.spares(spec) for spec in compiled):
        return None
    result = BaseResult(layers=tuple(layers), packages=top.lock)
    return lambda: result


def _as_in_image(spec: BasePart, ledger: Ledger) -> Layer | None:
    if isinstance(spec, ForeignSpec) and ledger.project.store.has(spec.layer.descriptor):
        return replace(spec.layer, title=spec.title)
    return ledger.find(spec)


def _interpreter(project: Project, plan: ImagePlan, base: Callable[[], BaseResult], place: str) -> Interpreter:
    *_, top = bases(plan)
    return bytecode.interpreter(project.home, project.store, base().layers, top.base.python, place=place)


def _once(function: Callable[[], _T]) -> Callable[[], _T]:
    """Call it at the first need; whoever else needs it meanwhile waits, and gets the same."""
    lock, found = threading.Lock(), Future[_T]()

    def call() -> _T:
        with lock:
            if not found.done():
                try:
                    found.set_result(function())
                except Exception as error:  # noqa: BLE001  raised for everybody who asks
                    found.set_exception(error)
        return found.result()

    return call


@contextmanager
def _ending(executor: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """Wait only for what runs; what has not begun is cancelled."""
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)
