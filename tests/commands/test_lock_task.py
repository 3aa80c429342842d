"""What `./inv lock` prints, and what it refuses."""

from __future__ import annotations

import pytest

import tasks
from tests.commands.printing import FAMILY, LOCKED, LOCKS, printed
from torchkiln.errors import UsageError
from torchkiln.lock import rows
from torchkiln.oci import digest


def test_what_a_row_uses_is_printed_for_pip(capsys: pytest.CaptureFixture[str]) -> None:
    """`lock --requirements`: the lines that its image is made from, whose digest is in its label."""
    (row,) = [row for row in FAMILY if row.id == LOCKED[0]]
    text = printed(capsys, tasks.lock, row.id, requirements=True)
    assert digest.of_bytes(text.encode()) == rows.read(LOCKS, row).digest


@pytest.mark.parametrize(
    "options",
    [
        {"check": True, "requirements": True},
        {"check": True, "markdown": True},
        {"check": True, "upgrade": True},
        {"check": True, "base": True},
        {"requirements": True, "upgrade": True},
        {"requirements": True, "from_facts": True},
    ],
)
def test_options_of_lock_that_contradict_each_other_are_refused(
    capsys: pytest.CaptureFixture[str], options: dict[str, bool]
) -> None:
    """Checking, printing and writing are three things, and one is asked for at a time."""
    with pytest.raises(UsageError, match="contradict each other") as raised:
        printed(capsys, tasks.lock, LOCKED[0], **options)
    for name in options:
        assert f"--{name.replace('_', '-')}" in raised.value.what
