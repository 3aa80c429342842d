from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from torchkiln.errors import UnknownTargetError
from torchkiln.matrix import schema
from torchkiln.matrix.target import select

TARGETS = schema.load(Path(__file__).with_name("small.yaml")).targets


@pytest.mark.parametrize(
    ("patterns", "ids"),
    [
        ([], ["torch25-cu124", "torch26-cu124", "torch28-cu128", "torch213-cpu"]),
        (["torch25-cu124"], ["torch25-cu124"]),
        (["torch2[58]-cu*"], ["torch25-cu124", "torch28-cu128"]),
        (["*-cpu", "torch25-*"], ["torch25-cu124", "torch213-cpu"]),
        (["torch213-cpu", "*cpu"], ["torch213-cpu"]),
    ],
)
def test_ids_and_globs_select_in_matrix_order(patterns: list[str], ids: list[str]) -> None:
    """However they are given, targets come once and in the order of the matrix; nothing given means all."""
    assert [target.id for target in select(TARGETS, patterns)] == ids


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("torch25-cu214", "torch25-cu124"), ("torch2.13-cpu", "torch213-cpu"), ("zzz", "./inv matrix")],
)
def test_an_unknown_target_names_the_nearest(wrong: str, near: str) -> None:
    """A typo is answered with what was probably meant, even beside a pattern that matches."""
    with pytest.raises(UnknownTargetError) as raised:
        select(TARGETS, ["torch25-cu124", wrong])
    assert wrong in raised.value.what
    assert near in raised.value.remedy


def test_the_driver_floor_is_that_of_accelerator_and_gpu() -> None:
    """CUDA 12.8 starts on branch 525, a Blackwell card does not; ROCm has the oldest amdgpu that AMD tests it with."""
    rows = {target.id: target for target in schema.load(Path(__file__).parents[2] / "matrix.yaml").targets}
    floors = {name: rows[name].driver_floor for name in ("torch28-cu128", "torch28-cu128-rtx5090", "torch25-rocm62")}
    assert floors == {"torch28-cu128": "525.60.13", "torch28-cu128-rtx5090": "570", "torch25-rocm62": "6.0"}


def test_what_a_base_holds_is_listed_for_each_architecture() -> None:
    """Packages and layers differ between machines, so their lists are files of their own."""
    row = TARGETS[0]
    assert row.base_lock_name == f"base-{row.base.id}.txt"
    assert replace(row, arch="aarch64").base_lock_name == f"base-{row.base.id}-aarch64.txt"
    devel = replace(row.base, flavour="devel")
    assert replace(row, base=devel, arch="aarch64").base_lock_name == f"base-{row.base.id}-devel-aarch64.txt"


def test_a_row_with_additions_is_named_by_their_file() -> None:
    """The id that `build` prints for one is no row of the matrix; the remedy says how to come by it."""
    for wrong in ("torch25-cu124-with-pure", "torch25-*-with-pure"):
        with pytest.raises(UnknownTargetError) as raised:
            select(TARGETS, [wrong])
        below = wrong.removesuffix("-with-pure")
        assert raised.value.remedy.startswith(f"--target {shlex.quote(below)} --extra-requirements FILE")
        assert "pure" in raised.value.remedy
    with pytest.raises(UnknownTargetError) as raised:
        select(TARGETS, ["torch99-cu124-with-pure"])
    assert "FILE" not in raised.value.remedy
