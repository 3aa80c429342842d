"""Progress for people, on stderr: nested, timed steps; results belong to stdout, and commands/ prints them.

As in errors, no password of an address is repeated.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from torchkiln.errors import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

stderr = Console(stderr=True, highlight=False, soft_wrap=True)
_depth = 0


def note(text: str) -> None:
    """One line of progress at the present depth, plain when stderr is no terminal."""
    stderr.print("  " * _depth + redact(text), markup=False)


def warn(text: str) -> None:
    """One line that a reader should not overlook."""
    stderr.print("  " * _depth + "warning: " + redact(text), style="yellow", markup=False)


def progress(data: bytes) -> None:
    """What a program in an image says, line by line as it comes."""
    for line in data.decode(errors="replace").splitlines():
        note(f"| {line}")


@contextmanager
def step(title: str, seconds: dict[str, float] | None = None) -> Iterator[None]:
    """Say what begins and how long it took; with `seconds`, record the time under the title too."""
    global _depth  # noqa: PLW0603  nesting is a property of the one terminal
    note(f"{title} …")
    began = time.monotonic()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        took = time.monotonic() - began
        if seconds is not None:
            seconds[title] = round(took, 3)
        if sys.exc_info()[0] is None:
            note(f"{title}: {took:.1f} s")
