from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchkiln.engines import Command, Limits

if TYPE_CHECKING:
    from torchkiln.engines.sandbox import Sandbox
    from torchkiln.oci.image import Image

pytestmark = pytest.mark.sandbox


def said(sandbox: Sandbox, toy: Image, script: str, **command: object) -> str:
    """What a shell in the toy prints."""
    outcome = sandbox.run(toy, Command(argv=("sh", "-c", script), **command))  # type: ignore[arg-type]
    assert outcome.status == 0, outcome.stderr.decode()
    return outcome.stdout.decode().strip()


def test_it_works_here_or_says_why(sandbox: Sandbox) -> None:
    """A usable sandbox lacks nothing."""
    assert sandbox.lacks() == ""


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("nosuch",), 127),
        (("/etc/passwd",), 126),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "sh -c 'kill -9 $$'; exit $?"), 137),
        (("true",), 0),
    ],
)
def test_exit_codes_are_a_shells(sandbox: Sandbox, toy: Image, argv: tuple[str, ...], status: int) -> None:
    """127 missing, 126 not executable, 128+n by signal, else the command's own."""
    assert sandbox.run(toy, Command(argv=argv)).status == status


def test_time_limit(sandbox: Sandbox, toy: Image) -> None:
    """A command that outstays its time gets TERM first, and the outcome says so."""
    script = "trap 'echo bye; exit 3' TERM; while :; do sleep 0.05; done"
    outcome = sandbox.run(toy, Command(argv=("sh", "-c", script), limits=Limits(seconds=0.5)))
    assert (outcome.timed_out, outcome.status, outcome.stdout) == (True, 3, b"bye\n")
