"""What a check is, what it is given, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

PASS, FAIL, NOT_RUN, ENVIRONMENT = "pass", "fail", "not-run", "environment"
STATUSES = (PASS, FAIL, NOT_RUN, ENVIRONMENT)
CPU, GPU = "C", "G"
"""Levels: in a container on the CPU; with one GPU."""


@dataclass(frozen=True)
class Result:
    """A status (README.md has the table), the reason in words, and what was measured."""

    status: str
    reason: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def passed(reason: str = "", **data: Any) -> Result:
    """It ran and holds; the reason may carry a note."""
    return Result(PASS, reason, data)


def failed(reason: str, **data: Any) -> Result:
    """It ran and does not hold."""
    return Result(FAIL, reason, data)


def not_run(reason: str, **data: Any) -> Result:
    """It could not be asked here, and counts as neither good nor bad."""
    return Result(NOT_RUN, reason, data)


def host_fault(reason: str, **data: Any) -> Result:
    """The host is at fault, not the image."""
    return Result(ENVIRONMENT, reason, data)


@dataclass(frozen=True)
class Check:
    """The constant CHECK of a check's file; its name gives the id: `compile_generated.py` is compile.generated."""

    title: str
    explanation: str
    """What a failure means and what to do."""
    level: str = CPU
    needs: tuple[str, ...] = ()
    """Checks that must have passed: else this one answers not-run and names them."""
    seconds: float = 60
    """Time limit."""
    plain: bool = False
    """Keep the caller's environment: no shared compile cache, no thread caps."""


@dataclass(frozen=True)
class Context:
    """What a check may use besides the expectation."""

    scratch: Path
    """A folder of its own, removed afterwards."""
    found: Mapping[str, Mapping[str, Any]]
    """Data of the checks it needs, by id."""
    host: Mapping[str, Any]
    """host.facts()."""


@dataclass(frozen=True)
class Loaded:
    """A check's file, imported; `error` says why where it could not be."""

    id: str
    check: Check
    applies: Callable[[Any], bool]
    run: Callable[[Any, Context], Result] | None
    error: str = ""


@dataclass(frozen=True)
class Answer:
    """What became of one check."""

    id: str
    title: str
    level: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)
    applicable: bool = True
    required: bool = False
    explanation: str = ""

    def to_json(self) -> dict[str, Any]:
        """As in the report; the explanation only where someone has to act."""
        explanation = {"explanation": self.explanation} if self.status in (FAIL, ENVIRONMENT) else {}
        return {
            "id": self.id,
            "title": self.title,
            "level": self.level,
            "status": self.status,
            "reason": self.reason,
            "seconds": round(self.seconds, 2),
            "data": dict(self.data),
            "applicable": self.applicable,
            "required": self.required,
            "unproven": self.level == GPU,  # until these checks have run on a GPU of ours
            **explanation,
        }
