"""The suite in the image is the checkout's, and its launcher says which row it is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.toys import unpacked
from torchkiln.errors import ImageError
from torchkiln.layers import suite
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def checkout(folder: Path) -> Path:
    """A suite with by-products beside its sources."""
    for name in ("__main__.py", "checks/a.py", "checks/__pycache__/a.cpython-311.pyc", ".mypy_cache/x", "data.json"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def test_sources_alone_are_packed(tmp_path: Path) -> None:
    """Bytecode and hidden files of the checkout neither change the key nor reach the image."""
    folder, store = checkout(tmp_path / "validate"), Store(tmp_path / "store")
    planned = suite.spec(folder, b'{"schema": 1}')
    assert [name for name, _ in planned.files] == ["__main__.py", "checks/a.py", "data.json"]
    found = unpacked(store, suite.build(store, planned, folder))
    plain = {name: data for name, (entry, data) in found.items() if entry.isreg()}
    assert set(plain) == {
        "opt/torchkiln/expect.json",
        "opt/torchkiln/validate/__main__.py",
        "opt/torchkiln/validate/checks/a.py",
        "opt/torchkiln/validate/data.json",
        "usr/local/bin/torchkiln-doctor",
    }
    assert plain["opt/torchkiln/expect.json"] == b'{"schema": 1}'
    entry, launcher = found["usr/local/bin/torchkiln-doctor"]
    assert entry.mode == 0o755
    assert launcher.startswith(b"#!/bin/sh\n")
    assert b"/opt/torchkiln/validate doctor --expect /opt/torchkiln/expect.json" in launcher


def test_every_file_of_the_suite_is_in_the_key(tmp_path: Path) -> None:
    """Another content, another row: another layer."""
    folder = checkout(tmp_path / "validate")
    before = suite.spec(folder, b"{}")
    (folder / "checks" / "a.py").write_text("other")
    after = suite.spec(folder, b"{}")
    assert len({before.key, after.key, suite.spec(folder, b"[]").key}) == 3


def test_a_suite_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    """A layer never holds other bytes than its key says."""
    folder = checkout(tmp_path / "validate")
    planned = suite.spec(folder, b"{}")
    (folder / "data.json").write_text("edited")
    with pytest.raises(ImageError, match="changed"):
        suite.build(Store(tmp_path / "store"), planned, folder)
