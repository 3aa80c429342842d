"""Rows → their lock files: written where all that stands in them is resolved, whatever becomes of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.console import note
from torchkiln.errors import TorchkilnError
from torchkiln.home import write_atomically
from torchkiln.layers.base import table as userlands
from torchkiln.lock import asking, baselock, renew, sections
from torchkiln.lock.difference import difference, plain
from torchkiln.matrix import compat, facts
from torchkiln.matrix.nearest import legal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchkiln.lock.difference import Difference
    from torchkiln.lock.renew import Renewed
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.target import Target
    from torchkiln.project import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocked:
    """What `relock` did."""

    changed: tuple[Difference, ...]
    failed: Mapping[str, TorchkilnError]
    """By the rows, or the base, of each file that could not be written."""
    asked: int
    """How many files were to be written."""

    def refuse(self) -> None:
        """One error for all that failed, of the first one's kind."""
        if not self.failed:
            return
        first, *others = self.failed.values()
        if self.asked == 1:
            raise first
        told = "".join(f"\n  {name}: {error.what}" for name, error in self.failed.items())
        where = dict.fromkeys(error.where for error in (first, *others) if error.where)
        remedies = dict.fromkeys(error.remedy for error in (first, *others) if error.remedy)
        what = f"{len(self.failed)} of {self.asked} lock files could not be written:{told}"
        raise type(first)(what, where="; ".join(where), remedy="; ".join(remedies))


def relock(
    project: Project,
    targets: Sequence[Target],
    *,
    every: Sequence[Target],
    bases: bool = False,
    upgrade: bool = False,
    from_facts: bool = False,
) -> Relocked:
    """Write the locks of rows, and on request their bases' package lists; what changed in each part of each file.

    `every` are all rows there are. A file is written when all that stands in it is resolved; one that cannot be leaves
    the others alone. With bases, wheels that are locked as the rows stand are not asked for again.
    """
    targets = renew.within_facts(targets) if from_facts else targets
    how = asking.of(project.environment, upgrade=upgrade, from_facts=from_facts)
    wheels = renew.missing(project.locks, targets) if bases and not upgrade else targets
    changed: list[Difference] = []
    failed: dict[str, TorchkilnError] = {}
    names = dict.fromkeys(row.lock_name for row in wheels)
    listed = {project.base_lock(row): row for row in targets} if bases else {}
    with project.home.lock("use", shared=True):
        for name in names:
            sharing = [row for row in wheels if row.lock_name == name]
            try:
                refuse(project, sharing)
                changed += _written(renew.files(project.locks, every, sharing, how))
            except TorchkilnError as error:
                failed[", ".join(row.id for row in sharing)] = error
        for path, row in listed.items():
            try:
                refuse(project, [row])
                write_atomically(path, baselock.render(userlands.lock(project, row)).encode())
            except TorchkilnError as error:
                failed[f"base {row.base.name}"] = error
    return Relocked(changed=tuple(changed), failed=failed, asked=len(names) + len(listed))


def add(project: Project, targets: Sequence[Target]) -> tuple[Difference, ...]:
    """Lock users' additions to rows that are locked, where they are not locked as they stand; what changed.

    PlanError for an addition that does not go with its row, before anything is downloaded.
    """
    refuse(project, targets)
    if missing := renew.missing_additions(project.locks, targets):
        with project.home.lock("use", shared=True):
            changed = _written(renew.files(project.locks, targets, missing, asking.of(project.environment)))
        note(plain(changed))
        return changed
    return ()


def refuse(project: Project, targets: Sequence[Target], known: Facts | None = None) -> None:
    """MatrixError for the first row that the facts refuse; the matrix is read only then, for a row to offer."""
    known = known or facts.read()
    for target in targets:
        if not legal(target, known):
            compat.refuse(target, known, project.family())


def _written(renewed: Sequence[Renewed]) -> tuple[Difference, ...]:
    """Write all or nothing; LockError for what no lock can hold, such as a file that its index gives a strange name."""
    texts = {one.path: sections.render(one.after) for one in renewed}
    for path, text in texts.items():
        sections.parse(text, where=str(path))
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return tuple(part for one in renewed for part in difference(one.path.name, one.before, one.after))
