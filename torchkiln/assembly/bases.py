"""The base of a plan: at hand, elsewhere, or made in a process of its own while wheels come."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from torchkiln.layers import bytecode, pool
from torchkiln.layers.base import BaseResult, table
from torchkiln.oci.image import recorded
from torchkiln.specs import AdoptionSpec, BaseSpec, BytecodeSpec, ForeignSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchkiln.assembly.ledger import Ledger
    from torchkiln.assembly.stages import Stages
    from torchkiln.home import Home
    from torchkiln.layers.bytecode import Interpreter
    from torchkiln.oci.image import Layer
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project

    BasePart = BaseSpec | ForeignSpec | AdoptionSpec

_T = TypeVar("_T")


def parts(plan: ImagePlan) -> tuple[BasePart, ...]:
    """The specs of the base's layers, lowest first."""
    return tuple(spec for spec in plan.layers if isinstance(spec, BaseSpec | ForeignSpec | AdoptionSpec))


@contextmanager
def made(project: Project, plan: ImagePlan, *, frozen: bool, stages: Stages) -> Iterator[Callable[[], BaseResult]]:
    """The base's layers, made in a process of their own meanwhile, unless they are at hand."""
    if all(_at_hand(project, spec) for spec in parts(plan)):
        yield once(partial(table.build, project, parts(plan), frozen=frozen))
        return
    with pool.beside(partial(table.build, frozen=frozen), project, parts(plan)) as answer:

        def waited() -> BaseResult:
            with stages.piece("base"):
                return answer()

        yield waited


def _at_hand(project: Project, spec: BasePart) -> bool:
    layer = spec.layer if isinstance(spec, ForeignSpec) else recorded(project.home.lookup(spec.key))
    return layer is not None and project.store.has(layer.descriptor)


def elsewhere(plan: ImagePlan, ledger: Ledger) -> Callable[[], BaseResult] | None:
    """A base that need not be made: one that lies elsewhere, if nothing has to be compiled by its interpreter.

    Or one that is here, but only in the image's compression.
    """
    *_, top = parts(plan)
    layers = [layer for spec in parts(plan) if (layer := _as_in_image(spec, ledger)) is not None]
    compiled = [spec for spec in plan.layers if isinstance(spec, BytecodeSpec)]
    if len(layers) < len(parts(plan)) or isinstance(top, ForeignSpec):
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


def as_made(home: Home, spec: BasePart, base: BaseResult) -> BasePart:
    """The spec of what the base holds: where the archive has moved on, that is another key, and remembered by it."""
    if not isinstance(spec, BaseSpec) or not base.difference:
        return spec
    moved = replace(spec, lock=base.packages)
    home.record(moved.key, home.lookup(spec.key) or {})
    return moved


def interpreter(project: Project, plan: ImagePlan, base: Callable[[], BaseResult]) -> Interpreter:
    """The Python of a base, started on this machine; waits for the base."""
    *_, top = parts(plan)
    python = base().packages.python or top.base.python
    return bytecode.interpreter(project.home, project.store, base().layers, python, place=top.base.interpreter)


def once(function: Callable[[], _T]) -> Callable[[], _T]:
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
