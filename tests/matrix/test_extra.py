"""A user's requirements file says what is added, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchkiln.errors import MatrixError, UnknownTargetError
from torchkiln.matrix import extra, schema
from torchkiln.matrix.target import Extra


def test_requirements_are_read_with_comments(tmp_path: Path) -> None:
    """Comments and blank lines are nothing; the name comes from the file's."""
    path = tmp_path / "Serve2.txt"
    path.write_text("# what we serve with\n\nfastapi>=0.110  # the API\nuvicorn[standard]\n")
    found = extra.read(path)
    assert (found.id, found.requirements) == ("serve2", ("fastapi>=0.110", "uvicorn[standard]"))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("a-b.txt", "ab.txt"),
        ("serve.dev.in", "servedev.in"),
        ("My app", "myapp.txt"),
        ("ünï.txt", "n.txt"),
        ("_.txt", "additions.txt"),
    ],
)
def test_a_file_that_makes_no_name_is_to_be_renamed(tmp_path: Path, name: str, other: str) -> None:
    """Nothing is left out of a name, since two files would then make one image."""
    path = tmp_path / name
    path.write_text("fastapi\n")
    with pytest.raises(MatrixError, match="makes no name") as raised:
        extra.read(path)
    assert raised.value.remedy == f"rename the file, for example to {other}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fastapi\n--index-url https://me:secret@example.org/\n", "line 2: an option"),
        ("-r other.txt\n", "line 1: an option"),
        ("fastapi >> 2\n", "line 1: 'fastapi >> 2' is not a requirement"),
        ("Torch==2.4.0\n", "line 1: 'Torch==2.4.0' names torch, and the row says which one it has"),
        ("# nothing\n", "it asks for nothing"),
        ("http://me:secret@example.org/a.whl\n", "line 1: 'http://***@example.org/a.whl' is not a requirement"),
        ("app ; https://me:secret@example.org\n", "line 1: 'app ; https://***@example.org' is not a requirement"),
        ("app @ https://me:secret@example.org/app-1.0-py3-none-any.whl\n", "line 1: an address for app"),
    ],
)
def test_what_is_no_addition_is_refused(tmp_path: Path, text: str, told: str) -> None:
    """Each with its line, and without repeating a password."""
    path = tmp_path / "serve.txt"
    path.write_text(text)
    with pytest.raises(MatrixError) as raised:
        extra.read(path)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


ROWS = schema.load(Path(__file__).with_name("small.yaml")).targets
ADDED = Extra(id="serve", requirements=("web",), file=Path("serve.txt"))


def test_additions_go_on_top_of_rows() -> None:
    """A glob names the rows below; each gets another id, so that the plain image is left alone."""
    chosen = extra.select(ROWS, ["torch2[58]-*"], ADDED)
    assert [row.id for row in chosen] == ["torch25-cu124-with-serve", "torch28-cu128-with-serve"]
    assert [replace(row, extra=None) for row in chosen] == [
        row for row in ROWS if row.id in {"torch25-cu124", "torch28-cu128"}
    ]


def test_a_row_with_additions_can_be_named_as_it_is_called() -> None:
    """Its own id does, and additions of the matrix give way to those that were asked for."""
    (named,) = extra.select(ROWS, ["torch25-cu124-with-serve"], ADDED)
    other = replace(ADDED, id="other")
    assert extra.select([replace(row, extra=other) for row in ROWS], ["torch25-cu124"], ADDED) == (named,)
    with pytest.raises(UnknownTargetError, match="torch99"):
        extra.select(ROWS, ["torch99-*"], ADDED)


def test_no_file_is_a_matrix_error(tmp_path: Path) -> None:
    """A missing file and bytes that are no text."""
    with pytest.raises(MatrixError, match="cannot be read"):
        extra.read(tmp_path / "absent.txt")
    (tmp_path / "serve.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(MatrixError, match="cannot be read"):
        extra.read(tmp_path / "serve.txt")
