"""From answers to one verdict and exit status, by the table in README.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from validate.model import FAIL, PASS, Answer

INCOMPLETE = "incomplete"
EXITS = {PASS: 0, FAIL: 20, INCOMPLETE: 21}


def verdict(answers: Sequence[Answer]) -> str:
    """Fail if a required check failed; else incomplete if one did not pass; not-run never counts as passed."""
    statuses = {answer.status for answer in answers if answer.required}
    if FAIL in statuses:
        return FAIL
    return PASS if statuses == {PASS} else INCOMPLETE


def summary(answers: Sequence[Answer]) -> dict[str, int]:
    """How many answers of each status, those not applicable apart."""
    applicable = Counter(answer.status for answer in answers if answer.applicable)
    idle = sum(not answer.applicable for answer in answers)
    return {**dict(sorted(applicable.items())), **({"not-applicable": idle} if idle else {})}
