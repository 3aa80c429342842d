"""The table of static checks, and one pass over it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.inspect import files, settings, versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchkiln.inspect.subject import StaticCheck, Subject

CHECKS: tuple[StaticCheck, ...] = (*settings.CHECKS, *files.CHECKS, *versions.CHECKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one static check found."""

    check: StaticCheck
    applicable: bool
    problems: tuple[str, ...]
    seconds: float


def inspect(subject: Subject, clock: Callable[[], float] = time.perf_counter) -> tuple[Finding, ...]:
    """What every check finds, in the table's order; `clock` gives seconds."""
    return tuple(_finding(check, subject, clock) for check in CHECKS)


def _finding(check: StaticCheck, subject: Subject, clock: Callable[[], float]) -> Finding:
    began = clock()
    applicable = check.applies(subject.target)
    problems = tuple(check.judge(subject)) if applicable else ()
    return Finding(check=check, applicable=applicable, problems=problems, seconds=clock() - began)
