"""What `./inv matrix` prints for the matrix of this repository."""

from __future__ import annotations

import inspect
import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pytest

import tasks
from tests.commands.printing import FAMILY, LOCKED, STATES, printed
from tests.kiln import ROOT
from torchkiln.commands import checkout, development
from torchkiln.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("globs", [(), ("torch25-*",), ("*-hopper", "torch28-cu128")])
def test_matrix_for_github_has_a_job_for_each_row(capsys: pytest.CaptureFixture[str], globs: tuple[str, ...]) -> None:
    """In one line, in the matrix's order, for what --target selects; each knows whether it is locked."""
    text = printed(capsys, tasks.matrix, *globs, format="github")
    assert text.count("\n") == 1
    jobs = {job["target"]: job for job in json.loads(text)["include"]}
    chosen = [row.id for row in FAMILY if not globs or any(fnmatchcase(row.id, glob) for glob in globs)]
    assert list(jobs) == chosen
    assert {name: job["locked"] for name, job in jobs.items()} == {name: STATES[name] == "locked" for name in chosen}


def test_matrix_shows_every_row_once(capsys: pytest.CaptureFixture[str]) -> None:
    """With its lock's state; piped, a row takes a line unless lint warns."""
    lines = printed(capsys, tasks.matrix).splitlines()
    shown = {line.split()[0]: line for line in lines[1:-1]}
    assert list(shown) == list(STATES)
    assert [name for name, line in shown.items() if f" {STATES[name]} " not in f"{line} ".replace("*", " ")] == []
    assert lines[-1].startswith(f"{len(FAMILY)} rows: {len(LOCKED)} locked, ")


def test_matrix_keeps_to_locked_rows_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """For a workflow that builds what can be built."""
    jobs = json.loads(printed(capsys, tasks.matrix, format="github", locked=True))["include"]
    assert [job["target"] for job in jobs] == LOCKED


def test_json_is_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    """--json and --format json print the same."""
    short = printed(capsys, tasks.matrix, "torch25-cu124", json=True)
    assert short == printed(capsys, tasks.matrix, "torch25-cu124", format="json")
    assert short == printed(capsys, tasks.matrix, "torch25-cu124", format="json", json=True)
    assert json.loads(short)[0]["id"] == "torch25-cu124"


def test_markdown_is_what_the_readme_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """`./inv fix` writes the same table between the marks."""
    assert printed(capsys, tasks.matrix, format="markdown") in development.generated()[checkout.README]


@pytest.mark.parametrize(("format", "json", "what"), [("yaml", False, "is not known"), ("github", True, "contradicts")])
def test_a_format_must_be_known(format: str, json: bool, what: str) -> None:  # noqa: A002, FBT001  the flags' names
    """And only one of them at a time."""
    with pytest.raises(UsageError, match=what) as raised:
        inspect.unwrap(tasks.matrix.body)(None, [], format=format, json=json)
    assert "github" in raised.value.remedy


def test_any_row_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A refused one exits as a matrix with errors does; a good one needs no entry in the matrix."""
    with pytest.raises(SystemExit) as left:
        printed(capsys, tasks.matrix, explain="torch28-cu124-rtx4090d")
    assert left.value.code == MatrixError.exit_code
    assert "torch 2.8.0 has no cu124 build" in capsys.readouterr().out
    assert json.loads(printed(capsys, tasks.matrix, explain="torch25-cu124", json=True))["refused"] is False
    for more in ({"target": ["torch25-cpu"]}, {"target": [], "format": "github"}):
        with pytest.raises(UsageError, match="one id"):
            inspect.unwrap(tasks.matrix.body)(None, explain="torch25-cu124", **more)


def test_an_empty_id_is_no_id(capsys: pytest.CaptureFixture[str]) -> None:
    """--explain of a variable that was not set does not list the matrix."""
    with pytest.raises(UsageError, match="'' is no id"):
        printed(capsys, tasks.matrix, explain="")


def test_a_row_with_an_error_fails_the_list_and_gets_no_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People see it in words and exit 3; a workflow gets the others, and reads on stderr which are left out."""
    text = (ROOT / "tests/matrix/small.yaml").read_text()
    (tmp_path / "matrix.yaml").write_text(
        text.replace("releases: [torch25, torch26]", "releases: [torch25, torch26, torch28]")
    )
    (tmp_path / "validate").symlink_to(ROOT / "validate")
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as left:
        printed(capsys, tasks.matrix)
    assert left.value.code == MatrixError.exit_code
    said = capsys.readouterr().out
    assert "torch 2.8.0 has no cu124 build" in said
    assert said.splitlines()[-1].startswith("5 rows: ")
    assert said.endswith(", 1 error\n")
    inspect.unwrap(tasks.matrix.body)(None, [], format="github")
    out, err = capsys.readouterr()
    assert "torch28-cu124" not in out
    assert len(json.loads(out)["include"]) == 4
    assert err == "left out, since lint has errors for them: torch28-cu124\n"
