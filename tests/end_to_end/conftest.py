"""A cache that has what is slow to get, and nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT, ROW, Kiln
from torchkiln.lock import sections

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kiln import Row


@pytest.fixture
def warm(built: Row, tmp_path: Path) -> Kiln:
    """A cache of the test's own with the base and the wheels in it, hard-linked, but no other layer."""
    home = tmp_path / "warm"
    for part in ("store/blobs/sha256", "index", "wheels"):
        (home / part).mkdir(parents=True)
    blob = built.entry["layers"][0]["digest"].removeprefix("sha256:")
    entries = [f"index/{path.name}" for path in (built.kiln.home / "index").glob("base-*.json")]
    for path in (*entries, f"store/blobs/sha256/{blob}"):
        os.link(built.kiln.home / path, home / path)
    for lock in (ROOT / "images" / "locks").glob(f"{ROW}-py*.txt"):
        for pin in sections.parse(lock.read_text()).parts[""].pins:
            (home / "wheels" / pin.sha256).mkdir()
            os.link(built.kiln.home / "wheels" / pin.sha256 / pin.filename, home / "wheels" / pin.sha256 / pin.filename)
    return Kiln(home)
