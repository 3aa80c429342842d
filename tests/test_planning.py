"""What is known of an image before any of it is made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT
from torchkiln import planning
from torchkiln.errors import MatrixError, PlanError
from torchkiln.home import Home
from torchkiln.matrix import facts, schema
from torchkiln.matrix.publishing import PublishTarget
from torchkiln.matrix.target import publishing
from torchkiln.project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.sharing import Family

MATRIX = schema.load(ROOT / "matrix.yaml")


def test_a_refused_row_is_offered_another_base_of_the_matrix(tmp_path: Path) -> None:
    """A Python that torch has no wheel for is another base's matter, and bases are known from the matrix alone."""
    row = next(row for row in MATRIX.targets if row.release.id == "torch25" and row.base.id == "bookworm")
    old = replace(row, base=replace(row.base, id="old", suite="custom", python="3.7"))
    project = Project(root=ROOT, home=Home(tmp_path), environment={})
    with pytest.raises(MatrixError) as raised:
        planning.locked(project, old)
    assert "base bookworm" in raised.value.remedy
    with pytest.raises(MatrixError) as raised:
        planning.locked(replace(project, root=tmp_path), old)
    assert "base bookworm" not in raised.value.remedy


def test_a_layer_that_is_known_to_be_too_large_is_refused_by_the_plan(tmp_path: Path) -> None:
    """By what layers.lock says of the base: a build would make it, and end with that very error."""
    project = Project(root=ROOT, home=Home(tmp_path), environment={})
    row = next(row for row in MATRIX.targets if row.id == "torch213-cpu")

    def planned(limit: int) -> Family:
        place = PublishTarget(id="small", max_layer_bytes=limit)
        return planning.family(project, [publishing(row, place)], facts.read())

    assert row.id in planned(200_000_000).keys
    with pytest.raises(PlanError, match=r"may have 30000000 bytes, and more have: base bookworm \(\d+ bytes\)"):
        raise planned(30_000_000).left_out[row.id]


def test_a_row_for_a_publish_target_is_compared_with_rows_that_have_no_room_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they are made without it: the base is the same. One that was asked for is refused."""
    project = Project(root=ROOT, home=Home(tmp_path), environment={})
    place = PublishTarget(id="few", max_layers=20, max_layer_bytes=300_000_000)
    pair = [publishing(row, place) for row in MATRIX.targets if row.id in {"torch213-cpu", "torch25-cu124"}]
    found = planning.family(project, pair, facts.read(), ["torch213-cpu"])
    base, *_ = found.layers_of("torch213-cpu")
    assert sorted(base.rows) == ["torch213-cpu", "torch25-cu124"]
    assert "compared as made without it: 1" in capsys.readouterr().err
    assert list(planning.family(project, pair, facts.read()).left_out) == ["torch25-cu124"]
