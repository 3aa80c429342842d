"""The matrix as people read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.test_plan import TARGET
from torchkiln.matrix.rules import Finding
from torchkiln.matrix.target import Accelerator, Base, Flavour, Gpu
from torchkiln.report import rows
from torchkiln.report.rows import Row

NOTE = Finding(rule="driver", severity="note", message="runs [by] compatibility", evidence="a fact")
WARNING = Finding(rule="numpy", severity="warning", message="too new", evidence="a fact")
ERROR = Finding(rule="variant-exists", severity="error", message="no such build", evidence="a fact")
PLAIN = Row(target=TARGET, lock="locked")
A100 = Row(target=replace(TARGET, gpu=Gpu(id="a100", arch="sm_80")), findings=(NOTE, WARNING), lock="locked")
NOBLE = Base(id="noble", kind="debian", python="3.12", glibc="2.39")
DEVEL = Row(target=replace(TARGET, flavour=Flavour(id="devel"), base=NOBLE), findings=(NOTE, NOTE), lock="unlocked")
CPU = Row(
    target=replace(
        TARGET,
        accelerator=Accelerator(id="cpu", kind="cpu"),
        release=replace(TARGET.release, torchvision="", torchaudio=""),
    ),
    findings=(ERROR,),
    lock="stale",
)
EVERY = (PLAIN, A100, DEVEL, CPU)


def test_the_summary_counts_rows_locks_and_findings() -> None:
    """And says how to read the notes, unless they were read."""
    assert rows.summary(EVERY, notes=False) == (
        "4 rows: 2 locked, 1 unlocked, 1 stale, 1 error, 1 warning, 3 notes; notes in words: --verbose, or one --target"
    )
    assert rows.summary([PLAIN], notes=True) == "1 row: 1 locked"


@pytest.mark.parametrize(
    ("number", "word", "said"),
    [(0, "row", "0 rows"), (1, "row", "1 row"), (2, "row", "2 rows"), (1, "mismatch", "1 mismatch")],
)
def test_one_is_one(number: int, word: str, said: str) -> None:
    """And more are more."""
    assert rows.counted(number, word) == said
    assert rows.counted(3, "mismatch") == "3 mismatches"


def test_a_lock_that_rests_on_one_source_is_marked() -> None:
    """A reader sees how many there are."""
    marked = replace(PLAIN, unconfirmed=("torchaudio",))
    assert rows.summary([marked, PLAIN], notes=True) == "2 rows: 2 locked, * 1 with a hash of a single source"


def test_the_readme_has_a_line_for_each_release_and_accelerator() -> None:
    """With what its rows have between them, each value once."""
    text = rows.filled(f"before\n{rows.BEGIN}old\n{rows.END}\nafter", EVERY)
    before, head, rule, cuda, cpu, _, bases, after = (
        text.replace(rows.BEGIN, "").replace(rows.END + "\n", "").splitlines()
    )
    assert (before, after) == ("before", "after")
    assert bases == "Bases: Python 3.11 bookworm, 3.12 noble."
    assert head.count("|") == rule.count("|") == cuda.count("|")
    assert [cell.strip() for cell in cuda.split("|")[1:-1]] == [
        "`torch25-cu124*` (3)",
        "2.5.1",
        "0.20.1, 2.5.1",
        "CUDA 12.4",
        "525.60.13",
        "3.11, 3.12",
        "any, a100",
        "runtime, devel",
        "2 of 3",
    ]
    assert [cell.strip() for cell in cpu.split("|")[1:-1]][2:] == [
        "-",
        "CPU",
        "-",
        "3.11",
        "any",
        "runtime",
        "no",
    ]


@pytest.mark.parametrize(
    ("vision", "audio", "told"),
    [("0.28.0", "", "0.28.0, -"), ("", "2.9.0", "-, 2.9.0"), ("", "", "-"), ("0.20.1", "2.5.1", "0.20.1, 2.5.1")],
)
def test_of_a_pair_the_missing_one_is_told(vision: str, audio: str, told: str) -> None:
    """A single version says whose it is."""
    release = replace(TARGET.release, torchvision=vision, torchaudio=audio)
    assert rows.companions(replace(TARGET, release=release)) == told


def test_a_row_with_an_error_is_refused() -> None:
    """A warning or a note refuses nothing."""
    assert [row.refused for row in EVERY] == [False, False, False, True]
