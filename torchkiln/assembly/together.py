"""Whether the wheels of a lock go together, and whether those on this disk are still what the lock says."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchkiln.assembly.arrival import arriving
from torchkiln.errors import HashMismatchError, LayerMismatchError, WheelError
from torchkiln.layers import parts, wheel
from torchkiln.lock import closure
from torchkiln.oci import digest as digests
from torchkiln.oci.image import canonical
from torchkiln.specs import AdoptionSpec, BaseSpec, WheelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torchkiln.assembly.arrival import Arrivals
    from torchkiln.assembly.ledger import Ledger
    from torchkiln.assembly.stages import Stages
    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project

RULE = 1
"""Goes up when `held` refuses what it let pass: what was found to go together is asked again."""


def known(project: Project, plan: ImagePlan, lock: Lock) -> bool:
    """Whether these wheels were found to go together before."""
    return project.home.lookup(key(plan, lock)) is not None


def check(project: Project, plan: ImagePlan, lock: Lock, wheels: Arrivals) -> None:
    """Once, when all are there: none asks for what is not pinned, and none writes another's files."""
    if known(project, plan, lock):
        return
    held(plan, lock, wheels.of(lock.pins))
    remember(project, plan, lock)


def remember(project: Project, plan: ImagePlan, lock: Lock) -> None:
    """Note that these wheels go together."""
    project.home.record(key(plan, lock), {"conflicts": 0})


def held(plan: ImagePlan, lock: Lock, paths: Mapping[str, Path]) -> None:
    """LockError or ConflictError for wheels that do not go together."""
    requires = {pin.name: wheel.requirements(paths[pin.sha256]) for pin in lock.pins}
    closure.check(lock, requires, python=_python(plan), target=plan.target)
    wheel.check_conflicts({pin: paths[pin.sha256] for pin in lock.pins})


def fit(plan: ImagePlan, lock: Lock, ledger: Ledger, stages: Stages) -> None:
    """PlanError if a file of a wheel that is split is too big for any layer: such wheels are fetched before all others.

    So nothing is made of a row that can't be.
    """
    split = [spec for spec in plan.layers if isinstance(spec, WheelSpec) and spec.part]
    if not all(ledger.spares(spec) for spec in split):
        pins = list(dict.fromkeys(pin for spec in split for pin in spec.pins))
        with arriving(ledger.project, lock, pins, stages) as wheels:
            parts.check(split, wheels.of(pins))


def key(plan: ImagePlan, lock: Lock) -> str:
    """Names what was compared: a lock's wheels, on a base's Python, as files lie in layers of that format."""
    compared = digests.of_bytes(canonical([RULE, WheelSpec.FORMAT, lock.digest]))
    return f"together-{_python(plan)}-{digests.encoded(compared)}"


def _python(plan: ImagePlan) -> str:
    """Version of the base's Python, for which markers hold; the minor where no more is known."""
    (base,) = [spec for spec in plan.layers if isinstance(spec, BaseSpec | AdoptionSpec)]
    return base.lock.python or base.base.python


@contextmanager
def evicting(project: Project, lock: Lock) -> Iterator[None]:
    """Tell a wheel that is bad from a copy that was damaged on this disk: such copies are thrown out.

    Only when something is wrong are the wheels hashed again; the error passes if all are what the lock says.
    """
    try:
        yield
    except (WheelError, LayerMismatchError) as error:
        paths = {pin: project.home.wheel(pin.sha256, pin.filename) for pin in lock.pins}
        changed = [path for pin, path in paths.items() if path.exists() and _changed(pin, path)]
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
