"""A user's requirements file says what is added, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchkiln.errors import MatrixError
from torchkiln.matrix import extra

if TYPE_CHECKING:
    from pathlib import Path


def test_requirements_are_read_with_comments(tmp_path: Path) -> None:
    """Comments and blank lines are nothing; the name comes from the file's."""
    path = tmp_path / "My-serve.txt"
    path.write_text("# what we serve with\n\nfastapi>=0.110  # the API\nuvicorn[standard]\n")
    found = extra.read(path)
    assert (found.id, found.requirements) == ("myserve", ("fastapi>=0.110", "uvicorn[standard]"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fastapi\n--index-url https://me:secret@example.org/\n", "line 2: an option"),
        ("-r other.txt\n", "line 1: an option"),
        ("fastapi >> 2\n", "line 1: 'fastapi >> 2' is not a requirement"),
        ("Torch==2.4.0\n", "line 1: 'Torch==2.4.0' names torch, and the row says which one it has"),
        ("# nothing\n", "it asks for nothing"),
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


def test_no_file_is_a_matrix_error(tmp_path: Path) -> None:
    """A missing file and bytes that are no text."""
    with pytest.raises(MatrixError, match="cannot be read"):
        extra.read(tmp_path / "absent.txt")
    (tmp_path / "serve.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(MatrixError, match="cannot be read"):
        extra.read(tmp_path / "serve.txt")
