"""Run the static checks and validate/ on an image → ValidationReport."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torchkiln.inspect import facts
from torchkiln.inspect.checks import inspect
from torchkiln.inspect.subject import subject
from torchkiln.oci.image import manifest_descriptor
from torchkiln.oci.store import Store
from torchkiln.validation import container
from torchkiln.validation.container import Asking
from torchkiln.validation.report import NOT_SELECTED, CheckResult, Status, ValidationReport, Verdict, verdict
from torchkiln.validation.selection import check_required, inside, matches, select
from torchkiln.validation.suite import SUITE_CHECK, expectation, identifiers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torchkiln.engines import Engine
    from torchkiln.home import Home
    from torchkiln.inspect.checks import Finding
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.target import Target
    from torchkiln.oci.image import Image

__all__ = [
    "CheckResult",
    "ValidationReport",
    "Verdict",
    "check_required",
    "expectation",
    "identifiers",
    "select",
    "validate",
    "verdict",
]


def validate(
    engine: Engine | None,
    image: Image,
    target: Target,
    lock: Lock,
    home: Home,
    *,
    suite: Path,
    checks: Sequence[str] = (),
    profile: str = "smoke",
    store: Store | None = None,
    digest: str = "",
    output: Callable[[bytes], None] | None = None,
) -> ValidationReport:
    """Hold an image against a row; without a usable engine only the static checks can answer.

    `store` and `digest` say where the layers lie and what the image is known by, if not in the local store by its own.
    `suite` is the checkout's validate/ folder, `checks` selects by id or glob (all, if empty), `output` hears the
    suite's progress as it comes.
    """
    chosen = select(checks, suite)
    layers = facts.contents(store or Store(home.store), home, image.layers)
    static = tuple(_static(finding, chosen) for finding in inspect(subject(target, lock, image, layers)))
    asking = Asking(
        suite=suite,
        home=home,
        expectation=expectation(target, lock),
        checks=inside(chosen, suite),
        profile=profile,
        gpus=target.accelerator.kind != "cpu",
        output=output,
    )
    run = container.run(engine, image, asking)
    results, unmatched = _required((*static, *run.results), target.required)
    return ValidationReport(
        target=target.id,
        digest=digest or manifest_descriptor(image).digest,
        engine=engine.name if engine else "none",
        host=run.host,
        checks=results,
        verdict=verdict(results, unmatched),
        unmatched=unmatched,
    )


def _required(
    results: tuple[CheckResult, ...], globs: Sequence[str]
) -> tuple[tuple[CheckResult, ...], tuple[str, ...]]:
    """Results that know whether the row requires them, and the globs that name none; `suite.run` always is."""
    named = tuple(
        replace(
            result,
            required=result.applicable and (result.id == SUITE_CHECK or matches(result.id, globs)),
        )
        for result in results
    )
    return named, tuple(glob for glob in globs if not any(fnmatchcase(result.id, glob) for result in results))


def _static(finding: Finding, chosen: Sequence[str]) -> CheckResult:
    check, problems = finding.check, finding.problems
    asked = matches(check.id, chosen)
    status: Status = "not-run" if not (finding.applicable and asked) else "fail" if problems else "pass"
    reason = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")  # noqa: PLR2004
    if status == "not-run":
        reason = NOT_SELECTED if finding.applicable else "not applicable to this row"
    return CheckResult(
        id=check.id,
        title=check.title,
        level="S",
        status=status,
        reason=reason,
        seconds=finding.seconds,
        data={"problems": list(problems[:200])} if problems and status == "fail" else {},
        applicable=finding.applicable,
        explanation=check.explanation,
    )
