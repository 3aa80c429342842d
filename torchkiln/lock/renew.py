"""Lock file → lock file: each part is asked for anew only where it must be; the others stay as they are, to the byte.

What is pinned already is preferred as long as it still does, so a diff holds what had to change; an upgrade prefers
nothing but the trio, which never changes but in matrix.yaml. A section that its pins moved under is made anew too, so
what is written is whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchkiln.console import step, warn
from torchkiln.errors import HashMismatchError, LockError, PlanError, StaleLockError
from torchkiln.lock import additions, fit, known, lockfile, rows
from torchkiln.lock.sections import LockFile
from torchkiln.matrix import facts
from torchkiln.matrix.target import TRIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torchkiln.lock.asking import Asking
    from torchkiln.lock.lockfile import Inputs, Lock, Pin
    from torchkiln.matrix.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """A lock file as it was and as it should be."""

    path: Path
    before: LockFile
    after: LockFile


def files(folder: Path, family: Sequence[Target], chosen: Sequence[Target], asking: Asking) -> tuple[Renewed, ...]:
    """The lock files of the chosen rows; `family` are all rows there are.

    What lies below a user's additions stays as it is where it can.
    """
    made: list[Renewed] = []
    for name in dict.fromkeys(row.lock_name for row in chosen):
        sharing = [row for row in chosen if row.lock_name == name]
        path = folder / name
        before = _before(path, sharing[0])
        direct = [row for row in map(plain, sharing) if row in sharing or not _usable(row, before)]
        after = before
        if direct:
            with step(f"lock {name}"):
                after = renewed(before, [row for row in family if row.lock_name == name], direct, asking)
                for row in direct:
                    fit.row(row, after)  # nothing is written that a build would refuse
            made.append(Renewed(path=path, before=before, after=after))
        made += _beside(folder, [row for row in sharing if row.extra], after, asking)
    return tuple(made)


def _before(path: Path, row: Target) -> LockFile:
    """What a file holds; nothing if it is none, so that one with a merge's marks in it can be written anew."""
    try:
        return rows.at(path, row)
    except LockError as error:
        warn(f"{path.name} is written as if it were not there: {error.what}")
        return LockFile()


def within_facts(chosen: Sequence[Target]) -> tuple[Target, ...]:
    """The rows that can be locked by facts alone, with a warning that names the others; all, if there is none."""
    stated = facts.read()
    lacking = {row.id: missing[0] for row in chosen if (missing := known.lockable(row, stated))}
    if len(lacking) < len(chosen):
        for name, what in lacking.items():
            warn(f"{name} is left out: the facts do not hold {what}")
    return tuple(row for row in chosen if row.id not in lacking) or tuple(chosen)


def missing_additions(folder: Path, chosen: Iterable[Target]) -> tuple[Target, ...]:
    """The rows whose additions are not locked as they stand; LockError if a row below them is not."""
    below = {row.id: rows.read(folder, plain(row)) for row in chosen if row.extra}
    return tuple(row for row in chosen if row.id in below and not _usable(row, *rows.files(folder, row)))


def missing(folder: Path, chosen: Iterable[Target]) -> tuple[Target, ...]:
    """The rows whose wheels are not locked as the rows stand; a file that is none locks nothing."""
    return tuple(row for row in chosen if not _locked(folder, row))


def _locked(folder: Path, row: Target) -> bool:
    try:
        rows.read(folder, row)
    except (LockError, StaleLockError):
        return False
    return True


def plain(row: Target) -> Target:
    """A row without a user's additions."""
    return replace(row, extra=None)


def _usable(row: Target, file: LockFile, beside: LockFile = fit.EMPTY) -> bool:
    try:
        fit.row(row, file, beside)
    except (LockError, StaleLockError):
        return False
    return True


def _beside(folder: Path, chosen: Sequence[Target], own: LockFile, asking: Asking) -> tuple[Renewed, ...]:
    """The lock files beside users' lists, each with a section for every flavour that was chosen."""
    sections = {(path_beside(row, folder), row.flavour.id): row for row in chosen}
    before = {path: _before(path, row) for (path, _), row in sections.items()}
    after = dict(before)
    for (path, _), row in sections.items():
        with step(f"lock {path.name}"):
            after[path] = with_additions(after[path], row, fit.row(plain(row), own), asking)
            fit.row(row, own, after[path])
    return tuple(Renewed(path=path, before=before[path], after=after[path]) for path in before)


def path_beside(row: Target, folder: Path) -> Path:
    """The lock file of a user's additions."""
    *_, name = fit.additions(row)
    return fit.file_of(row, name, folder)


def renewed(before: LockFile, family: Iterable[Target], chosen: Sequence[Target], asking: Asking) -> LockFile:
    """A lock file for the chosen rows; `family` are all rows that share it, whose sections are still wanted."""
    common = before.common
    alone = any(not _own(row) for row in chosen)
    if common is None or alone or asking.upgrade or not _holds(common, chosen[0]):
        common = _made(common, fit.asked(chosen[0]), chosen[0], asking)
    sections: dict[str, Lock] = {}
    asked_for = {row.flavour.id for row in chosen}
    for name, row in _adding((*family, *chosen)).items():
        old, asked = before.sections.get(name), fit.added(row, row.flavour.requirements, common.pins)
        if name in asked_for or (old and old.inputs != asked.checksum):
            others = [pin for lock in sections.values() for pin in lock.pins]
            how = asking if name in asked_for else replace(asking, upgrade=False)
            sections[name] = _made(old, asked, row, how, above=common.pins, others=others)
        elif old:
            sections[name] = old
    return LockFile(common=common, sections=sections)


def with_additions(before: LockFile, row: Target, own: Lock, asking: Asking) -> LockFile:
    """A lock file for a user's additions to a row, on top of what the row has; sections of other flavours stay.

    PlanError for an addition that wants another version of what the row has; LockError for one that cannot be had.
    """
    *_, (name, requirements) = fit.additions(row).items()
    additions.refuse_nothing(row)
    additions.refuse_moves(row, own)
    asked = fit.added(row, requirements, own.pins)
    try:
        section = _made(before.sections.get(name), asked, row, asking, above=own.pins)
    except LockError as error:
        unsolvable = additions.UNSOLVABLE in error.what  # and not a network that failed
        culprits = [text for text in requirements if unsolvable and not _goes(text, row, own, asking)]
        raise additions.explained(error, row, own, culprits) from error
    except PlanError as error:
        culprits = [text for text in requirements if not _goes(text, row, own, asking)]
        raise additions.refusal(row, culprits, [error.what]) from error
    return LockFile(sections={**before.sections, name: section})


def _goes(requirement: str, row: Target, own: Lock, asking: Asking) -> bool:
    """Whether one addition could be had without the others."""
    try:
        asking.ask(fit.added(row, [requirement], own.pins), row, own.pins, ())
    except (LockError, PlanError):
        return False
    return True


def _own(row: Target) -> dict[str, tuple[str, ...]]:
    """The section of a row's flavour, if it has one."""
    return fit.additions(plain(row))


def _adding(rows: Iterable[Target]) -> dict[str, Target]:
    """A row of each flavour that adds wheels."""
    return {row.flavour.id: row for row in rows if _own(row)}


def _holds(common: Lock, row: Target) -> bool:
    """Whether what rows share can stay as it is."""
    try:
        fit.check_fresh(common, fit.asked(row), row)
        fit.check_fits(common, row)
    except (LockError, StaleLockError):
        return False
    return True


def _made(
    old: Lock | None,
    asked: Inputs,
    row: Target,
    asking: Asking,
    *,
    above: Sequence[Pin] = (),
    others: Sequence[Pin] = (),
) -> Lock:
    """A part, asked for anew; where it says what the old one said, the old one."""
    kept = [pin for pin in (old.pins if old else ()) if not asking.upgrade or pin.name in TRIO]
    found = asking.ask(asked, row, above, [*others, *kept])
    pins = _same_trio(old, found.pins) if old and asking.upgrade else found.pins
    new = lockfile.make(asked, pins, asking.resolver, found.sources.items())
    same = old and replace(new, resolver="", digest="") == replace(old, resolver="", digest="")
    return old if old and same else new


def _same_trio(old: Lock, pins: Sequence[Pin]) -> tuple[Pin, ...]:
    """Pins with the very files of the trio that were pinned; other bytes under their names are an error."""
    before = {(pin.name, pin.version): pin for pin in old.pins if pin.name in TRIO}
    for pin in pins:
        known = before.get((pin.name, pin.version), pin)
        if known.filename == pin.filename and known.sha256 != pin.sha256:
            raise HashMismatchError(
                f"the index serves other bytes as {pin.filename}",
                where=f"pinned {known.sha256}, offered {pin.sha256}",
                remedy="find out why before trusting either; ./inv lock without --upgrade takes the new file",
            )
    return tuple(before.get((pin.name, pin.version), pin) for pin in pins)
