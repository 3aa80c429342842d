"""What a validation found, as values; and the one verdict they amount to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA = 1

Status = Literal["pass", "fail", "not-run", "environment"]
Verdict = Literal["pass", "fail", "incomplete"]
NOT_SELECTED = "not selected"
"""Reason of a check that the caller left out; validate/ gives the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What became of one check."""

    id: str
    title: str
    level: str
    """S: layers read from outside; C: in a container on the CPU; G: with a GPU."""
    status: Status
    reason: str = ""
    seconds: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)
    applicable: bool = True
    """False where the row has no use for the check; it is then never required."""
    required: bool = False
    explanation: str = ""
    """What a failure means and what to do."""

    @property
    def unproven(self) -> bool:
        """Checks that need a GPU have never run on one of ours."""
        return self.level == "G"

    def to_json(self) -> dict[str, Any]:
        """As in the report."""
        explanation = {"explanation": self.explanation} if self.status in {"fail", "environment"} else {}
        return {
            "id": self.id,
            "title": self.title,
            "level": self.level,
            "status": self.status,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "data": dict(self.data),
            "applicable": self.applicable,
            "required": self.required,
            "unproven": self.unproven,
            **explanation,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """All checks of one image on one engine and host."""

    target: str
    digest: str
    """Of the manifest: what a publisher must find again."""
    engine: str
    host: Mapping[str, Any]
    checks: tuple[CheckResult, ...]
    verdict: Verdict
    unmatched: tuple[str, ...] = ()
    """Required globs that name no check."""

    @property
    def summary(self) -> Mapping[str, int]:
        """How many checks of each status; those not applicable apart."""
        counted = Counter(check.status if check.applicable else "not-applicable" for check in self.checks)
        return dict(sorted(counted.items()))

    @property
    def unselected(self) -> tuple[CheckResult, ...]:
        """Required checks that the caller left out."""
        return tuple(check for check in self.checks if check.required and check.reason == NOT_SELECTED)

    @property
    def only_selected(self) -> bool:
        """Whether nothing but the caller's selection keeps this from a pass."""
        rest = [check for check in self.checks if check.required and check not in self.unselected]
        return bool(self.unselected) and not self.unmatched and all(check.status == "pass" for check in rest)

    def to_json(self) -> dict[str, Any]:
        """The contract of `validate --json`."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "digest": self.digest,
            "engine": self.engine,
            "host": dict(self.host),
            "checks": [check.to_json() for check in self.checks],
            "summary": {**self.summary, "unmatched": list(self.unmatched)} if self.unmatched else dict(self.summary),
            "verdict": self.verdict,
        }


def verdict(checks: Iterable[CheckResult], unmatched: Sequence[str] = ()) -> Verdict:
    """Fail if a required check failed; else incomplete if one did not pass or a required glob names none; pure."""
    statuses = {check.status for check in checks if check.required}
    if "fail" in statuses:
        return "fail"
    return "pass" if statuses == {"pass"} and not unmatched else "incomplete"
