"""What `./inv build` refuses before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tasks
from tests.commands.printing import FAMILY, LOCKS, printed
from torchkiln.commands import selection
from torchkiln.commands.build import destinations
from torchkiln.errors import ImageError, LockError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_row_without_a_lock_is_not_built(capsys: pytest.CaptureFixture[str]) -> None:
    """The error says which command locks it, and which index must be in reach for that."""
    row = next(row for row in FAMILY if not (LOCKS / row.lock_name).exists())
    with pytest.raises(LockError) as raised:
        printed(capsys, tasks.build, row.id, validate=False)
    assert raised.value.what.startswith(f"{row.id} is unlocked")
    assert raised.value.remedy.startswith(f"./inv lock --target {row.id}, where ")
    assert ("download.pytorch.org" in raised.value.remedy) is not row.accelerator.by_default


def test_each_row_that_is_pushed_has_a_tag_of_its_own() -> None:
    """Its id, unless one is given; that for several rows is refused before anything is built."""
    chosen = [row for row in FAMILY if row.id in {"torch25-cu124", "torch26-cu124"}]
    assert destinations("", chosen) == ["", ""]
    where = "127.0.0.1:5000/team/torch"
    assert destinations(where, chosen) == [f"{where}:{row.id}" for row in chosen]
    assert destinations(f"{where}:mine", chosen[:1]) == [f"{where}:mine"]
    with pytest.raises(UsageError, match="one tag for 2 images"):
        destinations(f"{where}:mine", chosen)
    with pytest.raises(ImageError, match="HOST/REPOSITORY"):
        destinations("mine", chosen)


def test_the_tag_is_the_name_in_the_store() -> None:
    """In zstd it is not the row's id, and the help says so."""
    (row,) = selection.made_for(FAMILY[:1], None, "zstd")
    assert destinations("localhost/torch", [row]) == [f"localhost/torch:{row.id}-zstd3"]
    assert "-zstd3" in tasks.build.help["push"]


@pytest.mark.parametrize("given", [{"push": "me/torch"}, {"from_": "me/torch"}, {"from_": "localhost/me/torch:one"}])
def test_a_place_is_one_before_anything_is_locked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """Additions are resolved only for a build that can begin."""
    monkeypatch.setenv("TORCHKILN_HOME", str(tmp_path / "home"))
    (tmp_path / "own.txt").write_text("six\n")
    with pytest.raises(ImageError, match=r"HOST/REPOSITORY|no tag"):
        printed(capsys, tasks.build, "torch25-cu124", extra_requirements=str(tmp_path / "own.txt"), **given)
    assert not list(tmp_path.glob("*.lock"))
