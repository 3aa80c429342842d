"""`./inv matrix`: the rows, and what lint finds in them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import JSON, TARGET
from torchkiln.commands.output import show, width
from torchkiln.commands.selection import selected
from torchkiln.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context

    from torchkiln.report.rows import Row

FORMATS = ("table", "json", "markdown", "github")


@task(
    positional=[],
    iterable=["target"],
    help=TARGET
    | JSON
    | {
        "format": "table, json, markdown (the README's table) or github (one line for a workflow's strategy.matrix)",
        "verbose": "notes in words too; so it is with one target",
        "locked": "only rows that have a fresh lock",
        "explain": "an id, in the matrix or not: why that row would be refused, and what to use instead",
    },
)
@guarded
def matrix(
    _: Context,
    target: Sequence[str],
    format: str = "",
    json: bool = False,
    verbose: bool = False,
    locked: bool = False,
    explain: str | None = None,
) -> None:
    """List the targets, with what lint finds in them; exits 3 for an error."""
    from torchkiln.matrix import compat
    from torchkiln.report import actions, listing
    from torchkiln.report import rows as report
    from torchkiln.validation.selection import check_required

    wanted = format or ("json" if json else "table")
    if wanted not in FORMATS or (json and wanted != "json"):
        raise UsageError(
            f"--format {format} {'contradicts --json' if wanted in FORMATS else 'is not known'}",
            remedy=f"one of {', '.join(FORMATS)}; --json is --format json",
        )
    if explain is not None and (target or wanted not in {"table", "json"}):
        raise UsageError(
            "--explain takes one id, and no other selection", remedy=f"--explain {explain}, or with --json"
        )
    if explain is not None:
        explained(explain, json=wanted == "json")
        return
    found = [row for row in listed(target) if row.lock == "locked" or not locked]
    check_required([row.target for row in found], checkout.ROOT / "validate")
    if wanted == "json":
        show([compat.to_json(row.target, row.findings) for row in found])
    elif wanted == "github":
        show(actions.matrix(found))
    elif wanted == "markdown":
        sys.stdout.write(report.markdown(found))
    else:
        notes = verbose or len(found) == 1
        show(listing.listing(found, notes=notes, width=width()))
        show(report.summary(found, notes=notes))
    refused = [row.target.id for row in found if row.refused]
    if refused and wanted == "github":
        sys.stderr.write(f"left out, since lint has errors for them: {', '.join(refused)}\n")
    elif refused:
        raise SystemExit(MatrixError.exit_code)


def explained(identifier: str, *, json: bool) -> None:
    """Why a row would be refused, or not; exits 3 if it would."""
    from torchkiln.matrix import explain, facts
    from torchkiln.report import tables

    known = facts.read()
    found = explain.explain(checkout.family(known), known, identifier)
    show(explain.to_json(found) if json else tables.explained(found))
    if found.refused:
        raise SystemExit(MatrixError.exit_code)


def listed(patterns: Sequence[str]) -> list[Row]:
    """The rows of --target with their findings and the state of their locks."""
    from torchkiln.lock.rows import state, unconfirmed
    from torchkiln.matrix import compat, facts
    from torchkiln.report.rows import Row

    known = facts.read()
    family = checkout.family(known)

    return [
        Row(
            target=row,
            findings=compat.lint(row, known, family),
            lock=(lock := state(checkout.LOCKS, row)),
            unconfirmed=unconfirmed(checkout.LOCKS, row) if lock == "locked" else (),
        )
        for row in selected(family, patterns)
    ]
