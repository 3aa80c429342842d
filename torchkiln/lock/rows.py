"""The lock of a row, read from its files; no network is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torchkiln.errors import LockError, StaleLockError
from torchkiln.lock import basefit, baselock, fit, sections
from torchkiln.lock.sections import LockFile

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.lock.baselock import BaseLock
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.target import Target

State = Literal["locked", "unlocked", "stale"]


def read(folder: Path, target: Target) -> Lock:
    """The lock of a row, fresh and fitting; LockError says what to run if there is none."""
    return fit.row(target, *files(folder, target))


def text(folder: Path, target: Target) -> str:
    """What a row uses of its lock files, as one requirements file."""
    read(folder, target)
    return sections.text(fit.fresh(target, *files(folder, target)))


def files(folder: Path, target: Target) -> tuple[LockFile, LockFile]:
    """What there is of the lock file that a row shares, and of the one beside a user's additions."""
    names = ["", *fit.additions(target)]
    own, beside = (fit.file_of(target, name, folder) for name in (names[0], names[-1]))
    return at(own, target), at(beside, target) if beside != own else LockFile()


def at(path: Path, target: Target) -> LockFile:
    """The lock file at a path; empty if there is none."""
    return sections.read(path, remedy=fit.command(target)) if path.exists() else LockFile()


def packages(folder: Path, target: Target) -> BaseLock:
    """The package list of a row's base, fresh; LockError says what to run if there is none, or one of another Python.

    StaleLockError if it was made from something else than the row asks for.
    """
    path, remedy = folder / target.base_lock_name, basefit.command(target)
    listed = baselock.read(path, remedy=remedy)
    if target.base.image and listed.source != target.base.image:
        what = f"{path.name} is of {listed.source or 'no image'}, the row's base is {target.base.image}"
        raise StaleLockError(what, where=str(path), remedy=remedy)
    basefit.check_fresh(listed, target, str(path))
    if listed.python and not listed.python.startswith(f"{target.base.python}."):
        what = f"{path.name} lists Python {listed.python}, and {target.base.id} has {target.base.python}"
        raise LockError(what, where=str(path), remedy=remedy)
    return listed


def lacking(folder: Path, target: Target) -> str:
    """What a row has no lock for, in words; empty if it has all. LockError for a file that cannot be read."""
    missing = fit.lacking(target, *files(folder, target))
    if not missing and not (folder / target.base_lock_name).exists():
        return f"there is no package list of its base, images/locks/{target.base_lock_name}"
    return missing


def unconfirmed(folder: Path, target: Target) -> tuple[str, ...]:
    """The packages of a row whose pinned hash has a single source; none if the row has no lock."""
    found = files(folder, target)
    return () if fit.lacking(target, *found) else sections.joined(fit.parts(target, *found)).unconfirmed


def state(folder: Path, target: Target) -> State:
    """Whether a row can be built from what is committed; cheap, so no wheel is held against the platform."""
    try:
        if lacking(folder, target):
            return "unlocked"
        fit.fresh(target, *files(folder, target))
        packages(folder, target)
    except (LockError, StaleLockError):
        return "stale"
    return "locked"
