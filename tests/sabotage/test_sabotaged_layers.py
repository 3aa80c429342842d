from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.sabotage.sabotaged_layers import SABOTAGES, Parts
from torchkiln.inspect.checks import CHECKS, inspect

if TYPE_CHECKING:
    from collections.abc import Callable


def red(parts: Parts) -> dict[str, str]:
    """Failing checks and what they say."""
    return {found.check.id: "; ".join(found.problems) for found in inspect(parts.subject()) if found.problems}


def test_sound_image_passes() -> None:
    """The image that the sabotages start from has nothing wrong."""
    assert red(Parts()) == {}


@pytest.mark.parametrize(("check", "sabotage", "reason"), SABOTAGES, ids=[f"{s[0]}:{s[2]}" for s in SABOTAGES])
def test_sabotage_turns_its_check_red(check: str, sabotage: Callable[[Parts], Parts], reason: str) -> None:
    """One thing wrong makes one check fail, and the reason names it."""
    found = red(sabotage(Parts()))
    assert list(found) == [check], found
    assert re.search(reason, found[check]), found[check]


def test_every_static_check_has_a_sabotage() -> None:
    """No check is in the table that has never been seen red."""
    assert {check.id for check in CHECKS} == {check for check, _, _ in SABOTAGES}
