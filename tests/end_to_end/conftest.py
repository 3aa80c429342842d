"""The small row, built once for every test that looks at the result."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.kiln import HOME, ROW, Kiln, Row


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Row:
    """The CPU row, built and validated in the sandbox."""
    kiln = Kiln(Path(HOME) if HOME else tmp_path_factory.mktemp("built") / "home")
    (entry,) = json.loads(kiln.run("build", "--target", ROW, "--engine", "sandbox", "--json"))
    return Row(kiln=kiln, entry=entry)


@pytest.fixture
def warm(built: Row, tmp_path: Path) -> Kiln:
    """A cache of the test's own with the base and the wheels in it, hard-linked, but no other layer."""
    home = tmp_path / "warm"
    for part in ("store/blobs/sha256", "index", "wheels"):
        (home / part).mkdir(parents=True)
    base = built.entry["layers"][0]
    for path in (f"index/{base['key']}.json", f"store/blobs/sha256/{base['digest'].removeprefix('sha256:')}"):
        os.link(built.kiln.home / path, home / path)
    for wheel in (built.kiln.home / "wheels").rglob("*.whl"):
        folder = home / "wheels" / wheel.parent.name
        folder.mkdir(exist_ok=True)
        os.link(wheel, folder / wheel.name)
    return Kiln(home)
