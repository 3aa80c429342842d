"""Results on stdout: tables for people, `--json` for machines; progress is console.py's."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from torchkiln.errors import MatrixError

if TYPE_CHECKING:
    from torchkiln.validation import ValidationReport


def show(result: object) -> None:
    """A result: a table for people, else one JSON document."""
    from rich.console import Console, Group
    from rich.table import Table

    if isinstance(result, (Table, Group)):
        Console(width=width(), highlight=False).print(result)
    else:
        sys.stdout.write((result if isinstance(result, str) else document(result)) + "\n")


def width() -> int:
    """Columns of the terminal; plenty where there is none."""
    from rich.console import Console

    from torchkiln.report import listing

    return Console().width if sys.stdout.isatty() else listing.WIDE


def document(result: object) -> str:
    """A result as JSON, whose numbers are finite, in letters that stdout has."""
    letters = (sys.stdout.encoding or "").lower() not in {"utf-8", "utf8"}
    try:
        return json.dumps(result, indent=2, ensure_ascii=letters, allow_nan=False)
    except ValueError:
        raise MatrixError(
            "a figure is no finite number, and JSON has no word for it",
            where="matrix.yaml",
            remedy="state its thresholds as numbers",
        ) from None


def show_report(report: ValidationReport | None) -> None:
    """Every check, and the verdict in a sentence."""
    from torchkiln.report import tables

    if report is None:
        show("not validated (--no-validate): nothing counts as passed")
    else:
        show(tables.validation(report))
        show(tables.plainly(report))
