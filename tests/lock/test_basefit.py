"""A base that asks for something else than its lock was made from is stale, and says what changed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from torchkiln import home as homes
from torchkiln import pipeline, planning, process
from torchkiln.errors import StaleLockError
from torchkiln.home import Home
from torchkiln.lock import basefit, baselock, rows
from torchkiln.matrix import schema
from torchkiln.plan import base_specs
from torchkiln.project import Project
from torchkiln.specs import BaseSpec

ROOT = Path(__file__).parents[2]
ROW = next(row for row in schema.load(ROOT / "matrix.yaml").targets if row.id == "torch25-cu124")
LOCK = baselock.read(ROOT / "images/locks" / ROW.base_lock_name)
COMMAND = "./inv lock --target torch25-cu124 --base"


def said(lock: baselock.BaseLock, **base: object) -> str:
    """What is told of a row on a base that is changed like this."""
    with pytest.raises(StaleLockError) as raised:
        basefit.check_fresh(lock, replace(ROW, base=replace(ROW.base, **cast("dict[str, Any]", base))), "here")
    assert (raised.value.where, raised.value.remedy) == ("here", COMMAND)
    return raised.value.what


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"packages": (*ROW.base.packages, "curl")}, "packages: + curl"),
        ({"packages": ("curl", *ROW.base.packages[1:])}, f"packages: + curl, - {ROW.base.packages[0]}"),
        ({"packages": ()}, f"packages: - {', - '.join(sorted(ROW.base.packages))}"),
        ({"suite": "trixie", "python": "3.13"}, "suite: bookworm → trixie; python: 3.11 → 3.13"),
        ({"components": ("main", "contrib")}, "components: + contrib"),
    ],
)
def test_what_changed_is_told_in_words(changed: dict[str, Any], told: str) -> None:
    """Of a list what came and what left, of a word both."""
    assert said(LOCK, **changed) == f"base-bookworm.txt is stale: {told}"


def test_the_order_of_components_counts() -> None:
    """It is the order of sources.list."""
    lock = baselock.make(LOCK.packages, basefit.asked(replace(ROW.base, components=("main", "contrib")), ROW.arch))
    assert said(lock, components=("contrib", "main")).endswith("components: main contrib → contrib main")


@pytest.mark.parametrize(
    "changed",
    [{"packages": ROW.base.packages[::-1]}, {"mirror": "127.0.0.1"}, {"keyring": "/k"}, {"default": False}],
)
def test_what_is_a_machines_own_matter_makes_nothing_stale(changed: dict[str, Any]) -> None:
    """Nor does the order in which packages are written."""
    basefit.check_fresh(LOCK, replace(ROW, base=replace(ROW.base, **changed)), "here")


def test_a_list_that_does_not_say_what_it_was_made_from_is_stale() -> None:
    """So is one whose heading was edited, and one of an image that others made."""
    assert said(baselock.make(LOCK.packages)).endswith("it does not say what was asked for")
    assert said(replace(LOCK, inputs="sha256:0")).endswith("its heading was edited by hand")
    basefit.check_fresh(baselock.make(()), replace(ROW, base=replace(ROW.base, kind="dockerfile")), "here")


def test_a_plan_and_a_build_refuse_a_stale_list_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is matrix.yaml that moved, not the archive: no program is asked."""

    def forbidden(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it asked somebody")

    for name in ("run", "start"):
        monkeypatch.setattr(process, name, forbidden)
    shutil.copytree(ROOT / "images/locks", tmp_path / "images/locks")
    shutil.copytree(ROOT / "validate", tmp_path / "validate")
    project = Project(root=tmp_path, home=homes.prepare(Home(tmp_path / "home")), environment={})
    assert planning.planned(project, ROW)
    more = replace(ROW, base=replace(ROW.base, packages=(*ROW.base.packages, "curl")))
    for stage in (planning.planned, partial(pipeline.build, engine=None)):
        with pytest.raises(StaleLockError, match=r"base-bookworm\.txt is stale: packages: \+ curl\n"):
            stage(project, more)
    assert rows.state(project.locks, more) == "stale"


def test_the_plan_carries_the_command_that_accepts_a_new_archive() -> None:
    """For the error under --frozen; the key does not depend on it."""
    (spec,) = base_specs(ROW, LOCK, "recipe")
    assert isinstance(spec, BaseSpec)
    assert spec.relock == COMMAND
    assert replace(spec, relock="other").key == spec.key
