"""The rows of this repository's matrix, and what a task prints of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from tests.kiln import ROOT
from torchkiln.lock import rows
from torchkiln.matrix import schema

if TYPE_CHECKING:
    import pytest
    from invoke.tasks import Task

LOCKS = ROOT / "images/locks"
FAMILY = schema.load(ROOT / "matrix.yaml").targets
STATES = {row.id: rows.state(LOCKS, row) for row in FAMILY}
LOCKED, UNLOCKED = (
    [name for name, state in STATES.items() if (state == "locked") is wanted] for wanted in (True, False)
)


def printed(capsys: pytest.CaptureFixture[str], task: Task[Any], *target: str, **options: Any) -> str:  # noqa: ANN401  a task's own
    """What a task prints on stdout, its errors as they are; options that may be repeated are not given."""
    capsys.readouterr()
    repeated: dict[str, list[str]] = {name: [] for name in task.iterable if name != "target"}
    inspect.unwrap(task.body)(None, list(target), **(repeated | options))
    return capsys.readouterr().out
