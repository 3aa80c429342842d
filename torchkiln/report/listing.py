"""Rows of the matrix for a terminal: a table where it is wide enough, else a block for each row."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from torchkiln.report.rows import LOCKS, companions, counted
from torchkiln.report.tables import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from torchkiln.report.rows import Row

HEAD = ("target", "torch", "vision, audio", "GPU", "driver ≥", "python", "lock", "findings")
"""What an id says already has no column of its own."""
WIDE = 200
"""Columns of what is no terminal."""
ROOM = 30
"""Columns that findings need: with fewer, one is dozens of lines tall."""
GAP = 2


def listing(rows: Sequence[Row], *, notes: bool, width: int = WIDE) -> Group:
    """Rows, their locks, and what lint finds: errors and warnings in words; notes too if asked, else their rules.

    With notes, or where there is no room beside them, findings stand below the table, in lines of their own. Where the
    table itself is wider than `width`, each row is a block: id, lock and how much is found, then words.
    """
    for short in (True,) if notes else (False, True):
        cells = [_cells(row, short=short) for row in rows]
        if _width(cells) <= width:
            return Group(_table(rows, cells), *(_below(rows, width, notes=notes) if short else ()))
    return Group(*_blocks(rows, notes=notes, width=width))


def _below(rows: Sequence[Row], width: int, *, notes: bool) -> Iterator[Text]:
    """The findings of each row, after its id where there are several."""
    for row in rows:
        words = tuple(_words(row, width, notes=notes))
        yield from (Text(row.target.id),) if words and len(rows) > 1 else ()
        yield from words


def _cells(row: Row, *, short: bool) -> tuple[str, ...]:
    """A row's line, with how much is found, or with what."""
    target = row.target
    return (
        target.id,
        target.release.torch,
        companions(target),
        target.gpu.arch or "any",
        target.driver_floor or "-",
        target.base.python,
        _lock(row),
        _found(row) if short else "\n".join(_said(row)),
    )


def _lock(row: Row) -> str:
    return row.lock + "*" * bool(row.unconfirmed)


def _found(row: Row) -> str:
    """How much lint finds."""
    found = Counter(finding.severity for finding in row.findings)
    return ", ".join(counted(found[severity], severity) for severity in ("error", "warning", "note") if found[severity])


def _said(row: Row) -> Iterator[str]:
    told = [finding for finding in row.findings if finding.severity != "note"]
    yield from (f"{finding.severity}: {finding.message}" for finding in told)
    if rules := dict.fromkeys(finding.rule for finding in row.findings if finding not in told):
        yield f"notes: {', '.join(rules)}"


def _width(cells: Sequence[tuple[str, ...]]) -> int:
    """Columns that the table needs."""
    longest = [
        max(len(line) for cell in column for line in cell.split("\n")) for column in zip(HEAD, *cells, strict=True)
    ]
    return sum(longest[:-1]) + min(longest[-1], ROOM) + GAP * (len(HEAD) - 1)


def _table(rows: Sequence[Row], cells: Sequence[tuple[str, ...]]) -> Table:
    shown = columns(*HEAD)
    for column in shown.columns[:-1]:
        column.no_wrap = True
    for row, (*first, lock, findings) in zip(rows, cells, strict=True):
        shown.add_row(*first, Text(lock, style=LOCKS.get(row.lock, "")), Text(findings))
    return shown


def _blocks(rows: Sequence[Row], *, notes: bool, width: int) -> Iterator[Text]:
    """A line for each row, of two where it is too long; its findings below it."""
    first = max(len(cell) for cell in (HEAD[0], *(row.target.id for row in rows))) + GAP
    second = max(len(cell) for cell in (HEAD[-2], *map(_lock, rows))) + GAP
    fits = first + second + max(len(cell) for cell in (HEAD[-1], *map(_found, rows))) <= width
    if fits:
        yield Text(f"{HEAD[0]:{first}}{HEAD[-2]:{second}}{HEAD[-1]}", style="bold")
    for row in rows:
        name, lock = Text(f"{row.target.id:{first}}".rstrip()), Text(f"{_lock(row):{second}}", LOCKS.get(row.lock, ""))
        state = Text.assemble(lock, _found(row))
        state.rstrip()
        yield from (Text.assemble(f"{row.target.id:{first}}", state),) if fits else (name, Text("  ") + state)
        yield from _lines(_parts(row), width) if notes else ()
        yield from _words(row, width, notes=notes)


def _parts(row: Row) -> str:
    """What the table has columns for, in words."""
    _, *values, _, _ = _cells(row, short=True)
    return "; ".join(f"{name} {value}" for name, value in zip(HEAD[1:-2], values, strict=True))


def _words(row: Row, width: int, *, notes: bool) -> Iterator[Text]:
    """Findings, each in lines of its own."""
    for finding in row.findings:
        if notes or finding.severity != "note":
            yield from _lines(f"{finding.severity}: {finding.message}", width)


def _lines(text: str, width: int) -> Iterator[Text]:
    """Text below a row, indented."""
    for line in textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False):
        yield Text(line)
