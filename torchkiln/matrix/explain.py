"""An id → why that row would be refused, or not, and what to use instead, whether matrix.yaml has it or not; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torchkiln.matrix import compat, declare, facts
from torchkiln.matrix.compose import compose
from torchkiln.matrix.nearest import Choice, changes, cost, established, fine, nearest
from torchkiln.matrix.target import ARCH, GENERIC, Target, combinations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.rules import Finding
    from torchkiln.matrix.schema import Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What is known about a row that somebody asks about."""

    target: Target
    """The row as it is in the matrix, or as it would be."""
    listed: bool
    """Whether the matrix has it."""
    excluded: tuple[str, ...]
    """Where the matrix leaves it out of a product, and by which pattern."""
    findings: tuple[Finding, ...]
    nearest: Target | None
    """The row that changes least and has no error; of a refused row only, and absent where nothing helps."""
    offered: Target | None
    """The nearest row that the matrix has and that runs on that GPU; of a row that can't be built as it stands."""

    declare: tuple[str, ...] = ()
    """Lines of matrix.yaml: the parts that it has not; of a row that may be built."""
    product: tuple[str, ...] = ()
    """Lines of matrix.yaml: the row; of one that may be built and is neither in the matrix nor excluded."""

    @property
    def refused(self) -> bool:
        """Whether the row has an error."""
        return any(finding.severity == "error" for finding in self.findings)


def explain(family: Matrix, known: Facts, identifier: str) -> Explained:
    """What lint says about the row with that id.

    UnknownTargetError names each part of the id that neither the matrix nor the facts know, with the nearest one that
    they do; UsageError what is no id at all.
    """
    target = compose(family, known, identifier)
    listed = any(row.id == target.id for row in family.targets)
    findings = compat.lint(target, known, family)
    refused = any(finding.severity == "error" for finding in findings)
    excluded = tuple(_excluded(family, target.id))
    new = not (refused or listed or excluded)
    return Explained(
        target=target,
        listed=listed,
        excluded=excluded,
        findings=findings,
        nearest=_nearest(target, known, family) if refused else None,
        offered=_offered(target, known, family) if refused or not listed else None,
        declare=declare.parts(target, family) if new else (),
        product=declare.product(target) if new else (),
    )


def _nearest(target: Target, known: Facts, family: Matrix) -> Target | None:
    """The nearest row that works; the matrix's own where that has its id."""
    row = nearest(target, known, family)
    same = (listed for listed in family.targets if row and listed.id == row.id and listed.gpu.driver == row.gpu.driver)
    return next((listed for listed in same if fine(listed, known)), row)


def _excluded(family: Matrix, identifier: str) -> Iterator[str]:
    for number, product in enumerate(family.products):
        if any(row.id == identifier for row in combinations(product)):
            for position, pattern in enumerate(product.exclude):
                if fnmatchcase(identifier, pattern):
                    yield f"targets[{number}].exclude[{position}]: {pattern}"


def _offered(target: Target, known: Facts, family: Matrix) -> Target | None:
    """The nearest row of the matrix that would work in the target's place."""
    rows = sorted(family.targets, key=lambda row: _distance(row, target, known))
    return next((row for row in rows if _in_place_of(row, target, known)), None)


def _in_place_of(row: Target, target: Target, known: Facts) -> bool:
    """Whether a row works where the target should: on its machine, GPU and driver, with no other user's additions."""
    kind = facts.kind(target.gpu.arch) if target.gpu.arch else target.accelerator.kind
    placed = replace(row, gpu=replace(target.gpu, run_options=row.gpu.run_options))
    fits = (
        row.accelerator.kind == kind
        and row.gpu.id in {*_names(target, known), GENERIC}
        and row.arch in {target.arch, ARCH}
    )
    return fits and (row.extra is None or row.extra == target.extra) and established(placed) and fine(placed, known)


def _names(target: Target, known: Facts) -> tuple[str, str]:
    """What a row for the target's GPU may be called."""
    return target.gpu.id, facts.kin(known, target.gpu.id)


def _distance(row: Target, target: Target, known: Facts) -> tuple[object, ...]:
    choice = Choice(release=row.release, accelerator=row.accelerator, base=row.base, flavour=row.flavour.id)
    count, rest = cost(choice, target, known)
    other = row.gpu.id not in _names(target, known)
    lacks = sum(bool(stated) for stated in (target.release.torchvision, target.release.torchaudio))
    lacks -= sum(bool(stated) for stated in (row.release.torchvision, row.release.torchaudio))
    return (count + other, rest, other, abs(lacks), row.extra != target.extra)


def to_json(found: Explained) -> dict[str, Any]:
    """`matrix --explain ID --json`: the row as `matrix --json` has it, and what else is known."""
    return {
        **compat.to_json(found.target, found.findings),
        "listed": found.listed,
        "excluded": list(found.excluded),
        "refused": found.refused,
        "nearest": found.nearest.id if found.nearest else "",
        "changes": list(changes(found.target, found.nearest)) if found.nearest else [],
        "declare": [*found.declare, *found.product],
        "offered": found.offered.id if found.offered else "",
    }
