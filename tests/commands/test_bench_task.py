"""What `./inv bench` lists and refuses, before anything is measured."""

from __future__ import annotations

import inspect
import runpy
from typing import TYPE_CHECKING

import pytest

import tasks
from bench import catalogue
from tests.kiln import ROOT
from torchkiln.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("what", ["list", "--help"])
def test_benches_are_listed(capsys: pytest.CaptureFixture[str], what: str) -> None:
    """Each with what it is about, and the options; invoke takes an option after `bench` for a bench's name."""
    told = inspect.unwrap(tasks.bench.body)(None, what, []) or capsys.readouterr().out
    listed = {line.split()[0] for line in told.splitlines() if line.startswith("  ")}
    assert listed == {*catalogue.BENCHES, "all"}
    assert all(one.title in told for one in catalogue.BENCHES.values())
    assert all(option in told for option in ("--rounds", "--estimate", "--results", "--fresh", "--json", "--target"))


@pytest.mark.parametrize("rounds", ["0", "-1", "x", "1.5"])
def test_a_bench_of_no_rounds_is_refused_before_anything(
    rounds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cache is made, and no result is written."""
    monkeypatch.setenv("TORCHKILN_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match=f"--rounds {rounds}: there is no figure without a round"):
        inspect.unwrap(tasks.bench.body)(None, "assemble", [], rounds=rounds, results=str(tmp_path / "results"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("", "--list"),
        ("bench", "bench list"),
        ("bench --help", "bench list --help"),
        ("bench --estimate", "bench all --estimate"),
        ("bench --target x --estimate", "bench all --target x --estimate"),
        ("bench push --rounds 1", "bench push --rounds 1"),
        ("matrix --json", "matrix --json"),
    ],
)
def test_the_launcher_names_what_is_meant_by_no_bench(typed: str, meant: str) -> None:
    """All where it is estimated, else their list; every other line stays as it was typed."""
    launcher = runpy.run_path(str(ROOT / "inv"))
    assert launcher["completed"](typed.split()) == meant.split()
