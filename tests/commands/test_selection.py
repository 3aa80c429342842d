"""Which rows the options of a task name, and as what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tasks
from tests.commands.printing import LOCKED, printed
from torchkiln.commands import selection
from torchkiln.commands.matrix import listed
from torchkiln.errors import StoreError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("patterns", [[""], ["torch213-cpu", ""]])
def test_an_empty_target_is_called_that(patterns: list[str]) -> None:
    """A variable that was not set is told as such, not as a target without a name."""
    with pytest.raises(UsageError, match="--target is empty"):
        selection.rows(patterns)
    with pytest.raises(UsageError, match="--target is empty"):
        listed(patterns)


def test_additions_name_another_row(tmp_path: Path) -> None:
    """--extra-requirements with an id or a glob: the rows below, with the additions on top."""
    file = tmp_path / "app.txt"
    file.write_text("web\n")
    (row,) = selection.rows([LOCKED[0]], extra=str(file))
    assert row.id == f"{LOCKED[0]}-with-app"
    assert selection.one_row([row.id], str(file)) == row


@pytest.mark.parametrize("empty", ["compression", "for_"])
def test_an_option_for_a_form_is_not_empty(capsys: pytest.CaptureFixture[str], empty: str) -> None:
    """A variable that was not set is told as such: the default would be another image."""
    for task in (tasks.plan, tasks.build, tasks.load, tasks.validate, tasks.shell, tasks.verify):
        with pytest.raises(UsageError, match=r"'' is no compression|--for is empty"):
            printed(capsys, task, "torch25-cu124", **{empty: ""})


def test_an_image_for_a_publish_target_is_not_the_one_for_anywhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for is what was built so; the error has the command that builds it."""
    monkeypatch.setenv("TORCHKILN_HOME", str(tmp_path))
    with pytest.raises(StoreError, match="torch25-cu124-for-ghcr-zstd3 is not built") as raised:
        printed(capsys, tasks.verify, "torch25-cu124", for_="ghcr", compression="zstd")
    assert raised.value.remedy.startswith("./inv build --target torch25-cu124 --for ghcr --compression zstd:3")
