from __future__ import annotations

import pytest

from torchkiln.engines import names
from torchkiln.errors import UsageError


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a", ("a", "latest")),
        ("a:1", ("a", "1")),
        ("host:5000/a/b-c_d", ("host:5000/a/b-c_d", "latest")),
        ("Host.example:5000/a:V1.0_x", ("Host.example:5000/a", "V1.0_x")),
    ],
)
def test_names(name: str, parts: tuple[str, str]) -> None:
    """A colon begins a port or a tag, depending on what follows."""
    assert names.split(name) == parts


@pytest.mark.parametrize("name", ["", "A", "a b", "a:", "a:b:c", "a:-x", "/a", "a//b", "a@sha256:00", "a:" + "x" * 129])
def test_no_names(name: str) -> None:
    """What an engine would refuse is refused, saying how a name looks."""
    with pytest.raises(UsageError) as caught:
        names.split(name)
    assert "NAME" in caught.value.remedy
