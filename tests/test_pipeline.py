"""What the whole story does before it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT
from torchkiln import pipeline
from torchkiln.errors import MatrixError
from torchkiln.home import Home
from torchkiln.matrix import schema
from torchkiln.project import Project

if TYPE_CHECKING:
    from pathlib import Path

MATRIX = schema.load(ROOT / "matrix.yaml")


def test_a_refused_row_is_offered_another_base_of_the_matrix(tmp_path: Path) -> None:
    """A Python that torch has no wheel for is another base's matter, and bases are known from the matrix alone."""
    row = next(row for row in MATRIX.targets if row.release.id == "torch25" and row.base.id == "bookworm")
    old = replace(row, base=replace(row.base, id="old", suite="custom", python="3.7"))
    project = Project(root=ROOT, home=Home(tmp_path), environment={})
    with pytest.raises(MatrixError) as raised:
        pipeline.locked(project, old)
    assert "base bookworm" in raised.value.remedy
    with pytest.raises(MatrixError) as raised:
        pipeline.locked(replace(project, root=tmp_path), old)
    assert "base bookworm" not in raised.value.remedy
