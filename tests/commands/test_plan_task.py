"""What `./inv plan` prints for the matrix of this repository."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import tasks
from tests.commands.printing import LOCKED, LOCKS, UNLOCKED, printed
from tests.kiln import ROOT
from tests.test_plan import pin
from torchkiln.commands import checkout, selection
from torchkiln.errors import LockError, UsageError
from torchkiln.lock import fit, lockfile, rows, sections
from torchkiln.lock.sections import LockFile

if TYPE_CHECKING:
    from pathlib import Path

    from invoke.tasks import Task


def test_plan_names_the_rows_that_share_each_layer(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the whole matrix, not only of --target; what one row shares with another holds the other way too."""
    every = json.loads(printed(capsys, tasks.plan, *LOCKED, json=True))
    keys = {plan["target"]: {layer["key"] for layer in plan["layers"]} for plan in every}
    (plan,) = json.loads(printed(capsys, tasks.plan, "torch25-cu124", json=True))
    for layer in plan["layers"]:
        wanted = [name for name in LOCKED if name != "torch25-cu124" and layer["key"] in keys[name]]
        assert layer["shared_with"] == wanted
    assert any(layer["shared_with"] for layer in plan["layers"])


def test_a_plan_is_for_its_publish_target_and_compression(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a compression's own layers, with the same config; options that make no sense are refused before anything."""
    plain, asked, stated = (
        json.loads(printed(capsys, tasks.plan, "torch25-cu124", json=True, **options))[0]
        for options in ({}, {"compression": "zstd:7"}, {"for_": "zstd"})
    )
    assert [layer["key"] for layer in asked["layers"]] == [f"{one['key']}.zstd-7-1" for one in plain["layers"]]
    assert [layer["key"] for layer in stated["layers"]] == [f"{one['key']}.zstd-3-1" for one in plain["layers"]]
    assert plain["config"] == asked["config"] == stated["config"]
    for task in (tasks.plan, tasks.build, tasks.load, tasks.validate, tasks.shell, tasks.verify):
        with pytest.raises(UsageError, match="no publish target is called nowhere"):
            printed(capsys, task, "torch25-cu124", for_="nowhere")
        with pytest.raises(UsageError, match="'lz4' is no compression"):
            printed(capsys, task, "torch25-cu124", compression="lz4")


def test_sharing_leaves_out_what_has_no_lock(capsys: pytest.CaptureFixture[str]) -> None:
    """A family is summed up as far as it is locked, and says what is not; a row without a lock has no plan."""
    summed = json.loads(printed(capsys, tasks.plan, "*", sharing=True, json=True))
    assert [row["target"] for row in summed["rows"]] == LOCKED
    assert [row["target"] for row in summed["left_out"]] == UNLOCKED
    assert summed["ratio"] > 1
    assert "rows:" in printed(capsys, tasks.plan, "torch25-*", sharing=True)
    for options in ({}, {"sharing": True}):
        with pytest.raises(LockError, match="is unlocked"):
            printed(capsys, tasks.plan, "torch25-cu118", **options)


def test_a_row_weighs_the_same_beside_one_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    """What no other row has is counted against the whole matrix, whichever rows --target names."""
    every = json.loads(printed(capsys, tasks.plan, "*", sharing=True, json=True))
    one = json.loads(printed(capsys, tasks.plan, LOCKED[0], sharing=True, json=True))
    assert one["rows"] == [row for row in every["rows"] if row["target"] == LOCKED[0]]
    assert one["left_out"] == []
    (plan,) = json.loads(printed(capsys, tasks.plan, LOCKED[0], json=True))
    alone = [layer["size"] for layer in plan["layers"] if not layer["shared_with"]]
    assert one["rows"][0]["unique"]["bytes"] == sum(size or 0 for size in alone)
    assert one["rows"][0]["unique"]["unknown_layers"] == alone.count(None)


def test_plan_takes_additions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What a user adds lies on top: all wheels of the row are still shared with it."""
    file = tmp_path / "serve.txt"
    file.write_text("tiny\n")
    with pytest.raises(LockError, match="torch25-cu124-with-serve is unlocked"):
        printed(capsys, tasks.plan, "torch25-cu124", extra_requirements=str(file))
    (row,) = selection.rows(["torch25-cu124"], extra=str(file))
    (name,) = fit.additions(row)
    above = rows.read(LOCKS, replace(row, extra=None)).pins
    tiny = lockfile.make(fit.added(row, ["tiny"], above), [pin("tiny")], "uv")
    fit.file_of(row, name, LOCKS).write_text(sections.render(LockFile(sections={name: tiny})))
    (plan,) = json.loads(printed(capsys, tasks.plan, "torch25-cu124", extra_requirements=str(file), json=True))
    assert plan["target"] == "torch25-cu124-with-serve"
    alone = [layer["title"] for layer in plan["layers"] if not layer["shared_with"]]
    assert alone == ["tiny 1", "bytecode of tiny 1", "validation suite"]
    assert all("torch25-cu124" in layer["shared_with"] for layer in plan["layers"] if layer["shared_with"])


def warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix with torch25-cu124-trixie, which lint warns about and which has no lock."""
    shutil.copytree(ROOT / "validate", tmp_path / "validate")
    text = (ROOT / "matrix.yaml").read_text()
    row = "  - {releases: [torch25], accelerators: [cu124], bases: [trixie]}\n"
    (tmp_path / "matrix.yaml").write_text(text + row)
    monkeypatch.setattr(checkout, "ROOT", tmp_path)


@pytest.mark.parametrize("task", [tasks.plan, tasks.build])
def test_warnings_come_before_a_row_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task[Any]
) -> None:
    """Once, also where something else then stops the row; a row without any is not spoken of."""
    warned(tmp_path, monkeypatch)
    options = {"validate": False} if task is tasks.build else {}
    with pytest.raises(LockError, match="torch25-cu124-trixie"):
        printed(capsys, task, "torch25-cu124-trixie", **options)
    err = capsys.readouterr().err
    assert err.count("warning: torch25-cu124-trixie: torch 2.5.1 comes without Triton on Python 3.13") == 1
    assert err.count("warning: ") == 1
