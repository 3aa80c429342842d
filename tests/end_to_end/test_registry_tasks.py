"""A built row goes into a registry and comes out of it as it was."""

from __future__ import annotations

import json
import os
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROW, Kiln

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kiln import Row


@pytest.mark.registry
def test_a_built_row_is_pushed_pulled_and_copied(built: Row, tmp_path: Path) -> None:
    """Same digest everywhere; a machine that pulled it runs and verifies it; nothing is sent twice."""
    host = os.environ["TORCHKILN_TEST_REGISTRY"]
    place = f"{host}/torchkiln-test/row-{secrets.token_hex(4)}"
    sent = json.loads(built.kiln.run("push", f"{place}:one", "--target", ROW, "--json"))
    assert sent["digest"] == built.entry["digest"]
    assert sent["reference"] == f"{place}@{sent['digest']}"
    assert sent["sent"] >= built.entry["compressed_size"]
    again = built.kiln.run("push", f"{place}:two", "--target", ROW, "--verify")
    assert "there, 0.0 MB; every byte verified" in again
    near = json.loads(built.kiln.run("copy", f"{place}:one", f"{place}-copy:one", "--json"))
    assert (near["digest"], near["sent"], near["verified"]) == (sent["digest"], 0, "sizes")
    other = Kiln(tmp_path / "home")
    assert other.run("pull", f"{place}-copy:one") == f"{ROW} {sent['digest']}\n"
    assert "every digest holds" in other.run("verify", "--target", ROW)
    shell = ["shell", "--target", ROW, "--engine", "sandbox", "--command", "python -c 'import torch'"]
    other.run(*shell)
    said = other.refused("pull", f"{place}:three", status=7)
    assert place in said
