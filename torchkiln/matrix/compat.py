"""Target and facts → findings: whether a row can work, before anything is downloaded; pure."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from torchkiln.errors import MatrixError
from torchkiln.matrix import rules
from torchkiln.matrix.nearest import changes, nearest

if TYPE_CHECKING:
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.rules import Finding
    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Target


def lint(target: Target, known: Facts, family: Matrix | None = None) -> tuple[Finding, ...]:
    """Everything the rules say about a row; each error comes with the row that changes least and has none.

    Bases, releases and flavours of the family are among what that row may have instead.
    """
    found = tuple(rules.check(target, known))
    if all(finding.severity != "error" for finding in found):
        return found
    row = nearest(target, known, family)
    return tuple(_offering(finding, target, row) if finding.severity == "error" else finding for finding in found)


def _offering(finding: Finding, target: Target, row: Target | None) -> Finding:
    words = finding.nearest or (told(target, row) if row else "")
    return replace(finding, row=row, nearest=words)


def told(target: Target, row: Target) -> str:
    """Another row in words: its id and, where hosts need another, the driver; what ids leave out is named."""
    if row.id == target.id:
        return ", ".join(changes(target, row))
    return row.id if row.gpu.driver == target.gpu.driver else f"{row.id}, driver {row.gpu.driver} or newer"


def refuse(target: Target, known: Facts, family: Matrix | None = None) -> None:
    """MatrixError with every error of a row, and the nearest of the family without one; nothing if it may be built."""
    errors = [finding for finding in lint(target, known, family) if finding.severity == "error"]
    if errors:
        lines = "".join(f"\n  {finding.rule}: {finding.message} ({finding.evidence})" for finding in errors)
        near = told(target, errors[0].row) if errors[0].row else errors[0].nearest
        raise MatrixError(
            f"{target.id} cannot work:{lines}", where=f"matrix.yaml, {target.id}", remedy=f"use {near}" if near else ""
        )


def warnings(target: Target, known: Facts) -> tuple[str, ...]:
    """What a row that may be built should not be built unawares of, a line each."""
    found = (finding for finding in rules.check(target, known) if finding.severity == "warning")
    return tuple(f"{target.id}: {finding.message} ({finding.rule})" for finding in found)


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as `matrix --json` has it: the nearest row by its id."""
    fields = {name: getattr(finding, name) for name in ("rule", "severity", "message", "evidence", "nearest")}
    return {**fields, "row": finding.row.id if finding.row else ""}


def to_json(target: Target, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """One row of `matrix --json`: its fields and what lint finds."""
    fields: dict[str, Any] = {"id": target.id, "lock": target.lock_name, **asdict(target)}
    if target.extra:
        fields["extra"]["file"] = str(target.extra.file)
    return {**fields, "findings": [finding_json(finding) for finding in findings]}
