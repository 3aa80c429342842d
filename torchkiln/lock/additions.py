"""A user's additions against the pins of the row below them: an addition never moves what a row says; pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from torchkiln.errors import LockError, PlanError
from torchkiln.lock import closure
from torchkiln.matrix.target import TRIO

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torchkiln.errors import TorchkilnError
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.target import Target

DEPENDS = re.compile(r"(?:all versions of )?(?P<who>[a-z0-9.-]+?)(?:[<>=!~,].*?)? depends? on (?P<what>[^\n]+)")
ASKED = re.compile(r"(?P<name>[a-z0-9-]+)(?P<spec>(?:[<>=!~]=?=?[^\s,]+,?)+)")
UNSOLVABLE = "No solution found"
WHEELLESS = re.compile(r"(?P<name>[a-z0-9-]+)(?:==(?P<version>\S+))? has no (?:usable )?wheels")
"""How uv words why it finds no solution."""


def refuse_moves(row: Target, own: Lock) -> None:
    """PlanError with every addition that names a package of the row in another version; nobody is asked for that."""
    pins = {pin.name: pin.version for pin in own.pins}
    stated = {text: Requirement(text) for text in (row.extra.requirements if row.extra else ())}
    moves = {
        text: f"the row has {name} {pins[name]}"
        for text, requirement in stated.items()
        if (name := canonicalize_name(requirement.name)) in pins
        and not requirement.specifier.contains(pins[name], prereleases=True)
    }
    if moves:
        raise refusal(row, list(moves), list(moves.values()))


def refuse_nothing(row: Target) -> None:
    """PlanError for a list of which every line has a marker that does not hold in the row's image."""
    stated = [Requirement(text) for text in (row.extra.requirements if row.extra else ())]
    if not any(closure.applies(one, python=row.base.python, machine=row.arch) for one in stated):
        where = str(row.extra.file if row.extra else "")
        place = f"Python {row.base.python} on {row.arch}"
        what = f"the list asks for nothing here: no line's marker holds for {place}, which {_below(row)} has"
        raise PlanError(what, where=where, remedy="change or leave out what stands behind the semicolon")


def refuse_trio(row: Target, asked: Collection[str], found: Iterable[str]) -> None:
    """PlanError if what was found for a user's additions holds one of the trio that the row goes without.

    Which build that would be, the row says; so its index is not asked for one.
    """
    if names := sorted({*found} & {*TRIO} - {*asked}):
        what = f"it asks for {' and '.join(names)}, which the row goes without"
        raise PlanError(what, where=row.id, remedy="./inv matrix lists rows that have it")


def explained(error: LockError, row: Target, own: Lock, culprits: Sequence[str]) -> TorchkilnError:
    """Why additions cannot be resolved on top of a row: which of them fail by themselves, and what they want.

    PlanError if they want another version of what the row has; LockError for all else.
    """
    file = str(row.extra.file if row.extra else "")
    if moves := list(dict.fromkeys(_moves(error.what, own))):
        return refusal(row, culprits, moves, error.what)
    if missing := list(dict.fromkeys(_wheelless(error.what))):
        place = f"Python {row.base.python}, {row.arch}, glibc {row.wheel_glibc}"
        what = f"{', '.join(missing)}: no wheel for {place}, and nothing is built from source\n{error.what}"
        remedy = "another version that has one, or a wheel of it on an index of yours"
        return LockError(what, where=file, remedy=remedy)
    change = f"change {file}" if "matrix.yaml" in error.remedy else error.remedy
    return LockError(f"the additions to {_below(row)} cannot be locked: {error.what}", where=file, remedy=change)


def _below(row: Target) -> str:
    return replace(row, extra=None).id


def refusal(row: Target, culprits: Sequence[str], reasons: Sequence[str], said: str = "") -> PlanError:
    """A PlanError that names the additions, why they do not go with the row, and what the resolver said."""
    named = ", ".join(culprits) or "all of them together"
    return PlanError(
        f"additions do not go with {_below(row)}: {named}: {'; '.join(reasons)}" + (f"\n{said}" if said else ""),
        where=str(row.extra.file if row.extra else ""),
        remedy="a version of the addition that takes what the row has, or a row that has what it takes: ./inv matrix",
    )


def _moves(said: str, own: Lock) -> Iterator[str]:
    """Who wants another version of a pinned package, as uv tells it."""
    pins = {pin.name: pin.version for pin in own.pins}
    for depends in DEPENDS.finditer(said):
        for wanted in ASKED.finditer(depends["what"].partition(", we can conclude")[0]):
            name, spec = wanted["name"], wanted["spec"].rstrip(",")
            if name in pins and not _met(spec, pins[name]):
                yield f"{depends['who']} asks for {name}{spec}, and the row has {name} {pins[name]}"


def _met(spec: str, version: str) -> bool:
    try:
        return SpecifierSet(spec).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def _wheelless(said: str) -> Iterator[str]:
    for found in WHEELLESS.finditer(said):
        yield " ".join(part for part in (found["name"], found["version"]) if part)
