"""`--extra-requirements`: an image with a user's own wheels, beside the plain one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROW

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kiln import Row

pytestmark = [pytest.mark.network, pytest.mark.sandbox]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A small addition."""
    file = tmp_path / "app.txt"
    file.write_text("humanize  # for people\n")
    return file


def test_additions_become_layers_on_top(built: Row, app: Path) -> None:
    """Every layer below is that of the plain image, which stays what it is; every command can name the new one."""
    kiln, extra = built.kiln, ("--target", ROW, "--extra-requirements", str(app))
    assert "is unlocked" in kiln.refused("build", *extra, "--frozen", "--no-validate", status=5)
    (entry,) = json.loads(kiln.run("build", *extra, "--no-validate", "--json"))
    (lock,) = app.parent.glob(f"app.{ROW}-py3.11-*.txt")
    text = lock.read_text()
    assert "humanize==" in text
    assert "torch==" not in text
    assert entry["target"] == f"{ROW}-with-app"
    own = [layer["digest"] for layer in built.entry["layers"]]
    found = [layer["digest"] for layer in entry["layers"]]
    assert found[: len(own) - 2] == own[:-2]
    assert found[-2] == own[-2]  # the environment; the suite above it knows the row
    assert len(found) == len(own) + 2
    assert "every digest holds" in kiln.run("verify", *extra)
    assert "every digest holds" in kiln.run("verify", "--target", ROW)
    said = kiln.run("shell", *extra, "--engine", "sandbox", "--command", "python -c 'import humanize, torch; print(7)'")
    assert said.split()[-1] == "7"
    (planned,) = json.loads(kiln.run("plan", *extra, "--json"))
    (base, *keys), (made, *others) = ([layer["key"] for layer in one["layers"]] for one in (planned, entry))
    assert keys == others
    frozen = ("--frozen",) if base == made else ()  # an archive that has moved on is what it refuses
    (again,) = json.loads(kiln.run("build", *extra, *frozen, "--no-validate", "--json"))
    assert again["digest"] == entry["digest"]
    static = ("--checks", "static.*", "--engine", "sandbox", "--json")
    report = json.loads(kiln.run("validate", *extra, *static, status=21))
    assert {check["status"] for check in report["checks"] if check["level"] == "S"} == {"pass"}


def test_an_addition_that_asks_for_another_torch_is_a_planning_error(built: Row, app: Path) -> None:
    """A real package: it is named, with the torch that it wants, and nothing is written."""
    app.write_text("xformers==0.0.28.post3\n")
    said = built.kiln.refused("build", "--target", ROW, "--extra-requirements", str(app), status=17)
    assert "xformers asks for torch==2.5.1, and the row has torch 2.13.0+cpu" in said
    assert list(app.parent.glob("app.*")) == [app]
