"""One layer of a plan: wait for what it is made from, then find it or have its maker make it.

Each layer has a thread of its own, which mostly waits. What computes is bounded: wheels are converted in a pool of
processes, modules are compiled by as many interpreters as there are processors.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from torchkiln.assembly import bases, together
from torchkiln.assembly.arrival import arriving
from torchkiln.layers import boundarylock, bytecode, environment, pool, recompress, suite, toolkit, wheel
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
    from torchkiln.layers.base import BaseResult
    from torchkiln.layers.bytecode import Interpreter
    from torchkiln.layers.pool import Pool
    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.oci.image import Layer
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project
    from torchkiln.specs import LayerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What layers are made from, as it comes, and who makes them."""

    project: Project
    ledger: Ledger
    stages: Stages
    wheels: Arrivals
    parts: tuple[BaseSpec | ForeignSpec | AdoptionSpec, ...]
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
        base = bases.elsewhere(plan, ledger) or stack.enter_context(
            bases.made(project, plan, frozen=frozen, stages=stages)
        )
        stop = threading.Event()
        stack.callback(stop.set)
        yield Inputs(
            project=project,
            ledger=ledger,
            stages=stages,
            wheels=stack.enter_context(arriving(project, lock, needed(plan, lock, ledger), stages)),
            parts=bases.parts(plan),
            base=base,
            interpreter=bases.once(partial(bases.interpreter, project, plan, base)),
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
        spec = bases.as_made(given.project.home, spec, given.base())
    elif isinstance(spec, BytecodeSpec):
        return _compiled(replace(spec, python=given.base().packages.python or spec.python), given)
    return spec, _as_in_image(spec, given, own)


def _compiled(spec: BytecodeSpec, given: Inputs) -> tuple[BytecodeSpec, Layer]:
    """The same of bytecode, by whoever compiles it here: another patch release than the base's is another key.

    It is held against what is locked for the base's Python all the same.
    """
    own = given.ledger.spares(spec)
    carried_out = spec if own else replace(spec, python=given.interpreter().version or spec.python)
    found = _as_in_image(carried_out, given)
    given.ledger.hold(carried_out, found, given.ledger.key(spec))
    return carried_out, found


def _as_in_image(spec: LayerSpec, given: Inputs, own: Layer | None = None) -> Layer:
    """Found or made; `own` is the base's, which is there."""
    found = given.ledger.find(spec)
    if found is None:
        found = _compressed(spec, _gzip(spec, given) if own is None else _held(spec, own, given), given)
    return found


def _held(spec: LayerSpec, layer: Layer, given: Inputs) -> Layer:
    given.ledger.hold(spec, layer)
    return layer


def _gzip(spec: LayerSpec, given: Inputs) -> Layer:
    """The layer as it is made first, whatever the image's compression."""
    found = given.ledger.find_gzip(spec)
    if found is None:
        found = _made(spec, given)
        given.ledger.hold(spec, found)
        compiler = given.parts if isinstance(spec, BytecodeSpec) else ()
        given.ledger.record(spec, found, made_of=[part.key for part in compiler])
    return found


def _compressed(spec: LayerSpec, layer: Layer, given: Inputs) -> Layer:
    """The layer as the image has it; one that is empty, or that others made, stays as it is."""
    key = given.ledger.key(spec)
    if key == spec.key or layer.empty:
        return layer
    with given.presses, given.stages.piece("compress"):
        found = recompress.recompress(given.project.store, layer, given.ledger.compression, stop=given.stop)
    given.ledger.hold(spec, found, key)
    given.ledger.record(spec, found, key, made_of=[spec.key])
    return found


def _made(spec: LayerSpec, given: Inputs) -> Layer:
    """What the maker of its kind makes of it, once all of that is there."""
    home, store, stages = given.project.home, given.project.store, given.stages
    if isinstance(spec, WheelSpec):
        paths, weight = given.wheels.of(spec.pins), sum(pin.weight for pin in spec.pins)
        with stages.piece("wheels to layers"):
            known = given.ledger.expected(spec)
            if known:
                boundarylock.give(home.boundaries, given.ledger.boundaries, paths)
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


@contextmanager
def _ending(executor: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """Wait only for what runs; what has not begun is cancelled."""
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)
