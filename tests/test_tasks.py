from __future__ import annotations

import pytest

import tasks
from torchkiln.errors import UsageError


@pytest.mark.parametrize("patterns", [[""], ["torch213-cpu", ""]])
def test_an_empty_target_is_called_that(patterns: list[str]) -> None:
    """A variable that was not set is told as such, not as a target without a name."""
    with pytest.raises(UsageError, match="--target is empty"):
        tasks.rows(patterns)
