"""Benchmarks from end to end, on the real base with wheels of a few bytes: all do their job, and leave nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import catalogue, contest, ours, stage
from tests.kiln import ROOT, ROW
from tests.toys import make_wheel, pin
from torchkiln import home as homes
from torchkiln.lock import rows
from torchkiln.matrix import schema
from torchkiln.matrix.target import select
from torchkiln.project import Project

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.figures import Result
    from tests.kiln import Row
    from torchkiln.lock.lockfile import Pin

pytestmark = [pytest.mark.network, pytest.mark.registry]


def toy(one: Pin, folder: Path) -> Path:
    """A wheel of that name, version and tag, with one module."""
    _, _, *tag = one.filename.removesuffix(".whl").split("-")
    name = one.name.replace("-", "_")
    return make_wheel(folder, one.name, one.version, {f"{name}.py": "answer = 42\n"}, tag="-".join(tag))


@pytest.fixture
def run(built: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a benchmark once, with as many of its contestants as are named; nothing of it is left afterwards."""
    monkeypatch.setenv("TORCHKILN_FIND_LINKS", str(tmp_path / "toys"))
    checkout = ours.checkout(ROOT, tmp_path / "checkout")
    (target,) = select(schema.load(checkout / "matrix.yaml").targets, [ROW])
    pins = rows.read(checkout / "images" / "locks", target).pins
    ours.repin(checkout, target, pins, [pin(toy(one, tmp_path / "toys")) for one in pins])
    home = homes.prepare(homes.Home(built.kiln.home))
    project = Project(root=checkout, home=home, environment=dict(os.environ))

    def run(name: str, *contestants: str) -> Result:
        bench = catalogue.BENCHES[name]
        with stage.prepared(project, [target]) as ready:
            result = contest.run(replace(bench, contestants=contest.only(bench, contestants)), ready, rounds=1)
        assert not ready.work.exists()
        assert str(ready.work) not in Path("/proc/mounts").read_text()
        return result

    return run


def test_an_image_is_composed_and_its_bytes_are_counted(run: Callable[..., Result]) -> None:
    """Nothing that the registry holds moves a second time."""
    result = run("compose")
    (ours_,) = result.contestants
    assert 0 < ours_.rounds[0]["bytes"] < 2e6
    assert result.rows == (ROW,)


@pytest.mark.docker
def test_a_changed_package_is_built_and_pushed_by_ours_and_by_docker(run: Callable[..., Result]) -> None:
    """What is below it is neither made nor sent again, by a split Dockerfile either; the engine has ended."""
    result = run("again", "torchkiln", "docker tuned")
    found = {one.name: one.rounds[0] for one in result.contestants}
    assert set(found) == {"torchkiln", "docker tuned"}
    assert all(0 < figures["bytes"] < 1e6 for figures in found.values())
    assert len(result.verdicts) == 1
