"""What the whole story does before it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT
from torchkiln import pipeline
from torchkiln.errors import LockError, MatrixError
from torchkiln.home import Home
from torchkiln.lock import lockfile
from torchkiln.lock.lockfile import Inputs, Pin
from torchkiln.lock.renew import Renewed
from torchkiln.lock.sections import LockFile
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


@pytest.mark.parametrize("filename", ["one-1-1/../../x-py3-none-any.whl", "one-1-1\nsix==1-py3-none-any.whl"])
def test_nothing_is_written_that_is_no_lock(tmp_path: Path, filename: str) -> None:
    """An index may give a file any name; the lock files beside the one that can't hold it stay as they are, too."""
    good, bad = (
        Pin(name="one", version="1", sha256="0" * 64, filename=name, size=1)
        for name in ("one-1-py3-none-any.whl", filename)
    )
    made = [LockFile(common=lockfile.make(Inputs(python="3.11"), [pin], "uv")) for pin in (good, bad)]
    renewed = [
        Renewed(path=tmp_path / f"{number}.txt", before=LockFile(), after=file) for number, file in enumerate(made)
    ]
    with pytest.raises(LockError, match="is not a pin"):
        pipeline._written(renewed)
    assert list(tmp_path.iterdir()) == []
    assert pipeline._written(renewed[:1])
