"""The matrix on terminals of any width."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from tests.report.test_rows import A100, EVERY, NOTE, PLAIN, WARNING
from torchkiln.report.listing import ROOM, listing

if TYPE_CHECKING:
    from torchkiln.report.rows import Row

LONG = replace(WARNING, message="words " * 30 + "end")
FULL = replace(A100, findings=(LONG, NOTE))
WIDTHS = (40, 60, 80, 100, 200)


def shown(*of: Row, notes: bool = False, width: int = 200) -> list[str]:
    """The lines, without colours, as a terminal of that width gets them."""
    out = io.StringIO()
    Console(file=out, width=width).print(listing(of, notes=notes, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_row_takes_a_line_until_something_is_wrong() -> None:
    """Lock and GPU of each row; errors and warnings in words, notes by their rules."""
    head, plain, a100, warned, devel, cpu = shown(*EVERY)
    assert " ".join(head.split()) == "target torch vision, audio GPU driver ≥ python lock findings"
    assert plain.split()[:6] == ["torch25-cu124", "2.5.1", "0.20.1,", "2.5.1", "any", "525.60.13"]
    assert plain.endswith("525.60.13  3.11    locked")
    assert " sm_80 " in a100
    assert a100.endswith("warning: too new")
    assert warned.strip() == "notes: driver"
    assert devel.endswith("3.12    unlocked  notes: driver")
    assert cpu.endswith("stale     error: no such build")


def test_notes_are_told_in_words_where_asked() -> None:
    """Below the table, with markup of theirs left as it is; the row itself counts them."""
    _, row, *below = shown(A100, notes=True)
    assert row.endswith("locked  1 warning, 1 note")
    assert below == ["  note: runs [by] compatibility", "  warning: too new"]
    assert shown(PLAIN, A100, notes=True)[3:] == ["torch25-cu124-a100", *below]


def test_where_words_have_no_room_the_table_counts() -> None:
    """All columns, with warnings and errors below it."""
    head, full, plain, name, *below = shown(FULL, PLAIN, width=100)
    assert head.endswith("python  lock    findings")
    assert full.endswith("locked  1 warning, 1 note")
    assert plain.endswith("locked")
    assert (name, len(below)) == ("torch25-cu124-a100", 2)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_has_target_lock_and_count(width: int) -> None:
    """One line for each row, with errors and warnings in words below it."""
    assert shown(*EVERY, width=width) == [
        "target                     lock      findings",
        "torch25-cu124              locked",
        "torch25-cu124-a100         locked    1 warning, 1 note",
        "  warning: too new",
        "torch25-cu124-devel-noble  unlocked  2 notes",
        "torch25-cpu                stale     1 error",
        "  error: no such build",
    ]


def test_a_very_narrow_one_takes_two_lines() -> None:
    """Nothing vanishes: lock and count go below the id."""
    lines = shown(*EVERY, width=36)
    assert lines[:4] == ["torch25-cu124", "  locked", "torch25-cu124-a100", "  locked    1 warning, 1 note"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("notes", [False, True])
def test_no_terminal_breaks_words_or_loses_any(width: int, notes: bool) -> None:  # noqa: FBT001  a parameter of pytest
    """Findings use the whole width, in as few lines as that takes; no line is wider."""
    lines = shown(FULL, PLAIN, notes=notes, width=width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert text.count("words") == 30
    usable = ROOM if width == 200 and not notes else width - 4
    assert sum("words" in line for line in lines) <= 192 // (usable - 5) + 1
    assert "torch25-cu124-a100 " in text
    assert ("runs [by] compatibility" in text) is notes
    assert ("0.20.1, 2.5.1" in text) is (notes or width >= 100)


def test_a_lock_that_rests_on_one_source_is_marked() -> None:
    """A reader sees it in the row, at any width."""
    marked = replace(PLAIN, unconfirmed=("torchaudio",))
    for width in WIDTHS:
        assert shown(marked, width=width)[1].endswith("locked*")
