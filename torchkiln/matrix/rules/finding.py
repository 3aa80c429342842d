"""A finding: what a rule has to say about a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torchkiln.matrix.target import Target

Severity = Literal["error", "warning", "note"]
"""An error refuses the row, a warning is likely to hurt, a note says what a reader should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule has to say about a row."""

    rule: str
    severity: Severity
    message: str
    evidence: str
    """The fact, and where it comes from."""
    nearest: str = ""
    """What would do, in words: a value, or the id of `row`."""
    row: Target | None = None
    """The row that changes least and has no error; of errors only, and absent where no row helps."""


def error(rule: str, message: str, evidence: str, nearest: str = "") -> Finding:
    """A finding that refuses the row."""
    return Finding(rule=rule, severity="error", message=message, evidence=evidence, nearest=nearest)


def warning(rule: str, message: str, evidence: str, nearest: str = "") -> Finding:
    """A finding that is likely to hurt."""
    return Finding(rule=rule, severity="warning", message=message, evidence=evidence, nearest=nearest)


def note(rule: str, message: str, evidence: str) -> Finding:
    """A finding that explains what is peculiar."""
    return Finding(rule=rule, severity="note", message=message, evidence=evidence)
