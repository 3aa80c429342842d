"""`./inv validate` and `./inv verify`: whether an image is what its row promises, and what its digests say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import ENGINE, EXTRA, JSON, MADE_FOR, TARGET
from torchkiln.commands.output import show, show_report
from torchkiln.commands.selection import made_for, one_row, rows
from torchkiln.errors import ValidationFailedError, ValidationIncompleteError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context

    from torchkiln.validation import ValidationReport


@task(
    positional=[],
    iterable=["target", "checks"],
    help=TARGET
    | JSON
    | ENGINE
    | EXTRA
    | MADE_FOR
    | {
        "image": "hold this image against the row: oci:DIR[:REF] or docker-daemon:NAME",
        "checks": "only these checks, by id or glob; may be repeated; the verdict is then incomplete at best",
    },
)
@guarded
def validate(
    _: Context,
    target: Sequence[str],
    checks: Sequence[str],
    image: str = "",
    engine: str = "auto",
    json: bool = False,
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Run the suite on a built image, or hold any image against a row; exits 20 if it fails, 21 if incomplete."""
    from torchkiln import finished, pipeline, validation

    work, row = checkout.project(), one_row(target, extra_requirements, for_, compression)
    validation.select(checks, work.suite)
    with finished.subject(work, row, image) as subject:
        runner = pipeline.engine(work, engine, subject)
        report = pipeline.validate(work, row, subject, runner, checks=checks)
    if json:
        show(report.to_json())
    else:
        show_report(report)
    judge([report], require_pass=True)


@task(
    positional=[],
    iterable=["target"],
    help=TARGET | JSON | EXTRA | MADE_FOR | {"image": "an image elsewhere: oci:DIR[:REF]"},
)
@guarded
def verify(
    _: Context,
    target: Sequence[str],
    image: str = "",
    json: bool = False,
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Recompute every digest, size and diff_id and report every mismatch; damaged blobs of built images are removed."""
    from dataclasses import asdict

    from torchkiln import finished
    from torchkiln.lock import fit
    from torchkiln.oci import load as foreign
    from torchkiln.oci.verify import verify as recompute
    from torchkiln.report.rows import counted

    work = checkout.project()
    chosen = () if image else made_for(rows(target, extra=extra_requirements), for_, compression)
    if image:
        found = {image: recompute(*foreign.manifest_of(image))}
    else:
        found = {row.ref: finished.verify(work, row) for row in chosen}
    if json:
        show([{"target": name, "mismatches": [asdict(one) for one in wrong]} for name, wrong in found.items()])
    for name, wrong in () if json else found.items():
        show(
            "\n".join(
                [f"{name}: {counted(len(wrong), 'mismatch') if wrong else 'every digest holds'}", *map(str, wrong)]
            )
        )
    if bad := [name for name, wrong in found.items() if wrong]:
        again = " and ".join(fit.build(row) for row in chosen if row.ref in bad)
        remedy = "copy the image again from where it came" if image else f"{again} makes anew what was damaged"
        raise VerifyError("digests do not hold", where=", ".join(bad), remedy=remedy)


def judge(reports: Sequence[ValidationReport], *, require_pass: bool) -> None:
    """Raise for the worst verdict; for an incomplete one only where a pass is required."""
    failed = [report.target for report in reports if report.verdict == "fail"]
    incomplete = [report for report in reports if report.verdict == "incomplete"]
    if failed:
        raise ValidationFailedError(f"validation failed: {', '.join(failed)}", remedy="the report says which and why")
    if incomplete and require_pass:
        chosen = all(report.only_selected for report in incomplete)
        raise ValidationIncompleteError(
            f"validation is incomplete: {', '.join(report.target for report in incomplete)}",
            where="only selected checks were asked, and they passed" if chosen else "",
            remedy="leave out --checks for a verdict on the row"
            if chosen
            else "./inv validate on a host that has what the checks need, such as the row's GPU",
        )
