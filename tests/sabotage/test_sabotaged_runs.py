from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sabotage.conftest import devel_expectation
from tests.sabotage.sabotaged_runs import SABOTAGES, Ground, Sabotage, run
from torchkiln.validation import identifiers, validate

if TYPE_CHECKING:
    from tests.sabotage.conftest import BuiltImage

SUITE = Path(__file__).parents[2] / "validate"


def devel_ground(image: BuiltImage) -> Ground:
    """The small row with a compiler, held against a row that promises one."""
    return Ground(engine=image.engine, image=image.image, expectation=devel_expectation(image), suite=SUITE)


@pytest.fixture
def ground(sabotage: Sabotage, request: pytest.FixtureRequest) -> Ground:
    """The small row, with a compiler for the checks of one."""
    if sabotage.check.startswith("devel."):
        return devel_ground(request.getfixturevalue("devel_image"))
    image: BuiltImage = request.getfixturevalue("built_image")
    return Ground(engine=image.engine, image=image.image, expectation=image.expectation, suite=SUITE)


def test_every_container_check_has_a_sabotage() -> None:
    """No check is in the suite that has never been seen red; those for GPUs are labelled unproven instead."""
    provable = {name for name in identifiers(SUITE) if not name.startswith("gpu.")}
    assert provable == {sabotage.check for sabotage in SABOTAGES}


@pytest.mark.network  # the compiler's wheels
@pytest.mark.sandbox
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=[f"{each.check}:{each.reason}" for each in SABOTAGES])
def test_sabotage_turns_its_check_red(sabotage: Sabotage, ground: Ground, tmp_path: Path) -> None:
    """One thing wrong makes one check fail, and the reason names it."""
    caught = run(ground, tmp_path, sabotage)
    assert caught.by(sabotage), caught


@pytest.mark.network
@pytest.mark.sandbox
def test_compiler_that_is_sabotaged_was_sound(devel_image: BuiltImage, tmp_path: Path) -> None:
    """What turns devel.nvcc red is the sabotage: without it, the check passes on that very image."""
    sound = Sabotage(check="devel.nvcc", status="pass", reason=r"^13\.0\.88 for sm_80, sm_90$")
    caught = run(devel_ground(devel_image), tmp_path, sound)
    assert caught.by(sound), caught


@pytest.mark.sandbox
def test_image_that_cannot_run_the_suite_fails(built_image: BuiltImage) -> None:
    """Without a Python on PATH one check is red, suite.run, and all others in the container did not run."""
    config = replace(built_image.image.config, env={**built_image.image.config.env, "PATH": "/nowhere"})
    report = validate(
        built_image.engine,
        replace(built_image.image, config=config),
        built_image.target,
        built_image.lock,
        built_image.home,
        suite=SUITE,
    )
    statuses = {check.id: check.status for check in report.checks if check.level != "S"}
    assert statuses.pop("suite.run") == "fail"
    assert set(statuses.values()) == {"not-run"}
    assert report.verdict == "fail"


@pytest.mark.sandbox
def test_selected_checks_never_make_a_pass(built_image: BuiltImage) -> None:
    """Asking for one check leaves the row's other required checks not-run, so the verdict is incomplete."""
    report = validate(
        built_image.engine,
        built_image.image,
        built_image.target,
        built_image.lock,
        built_image.home,
        suite=SUITE,
        checks=("python.version",),
    )
    ran = {check.id for check in report.checks if check.status == "pass"}
    assert ran == {"python.version", "suite.run"}
    assert report.verdict == "incomplete"
