from __future__ import annotations

import pytest

from torchkiln.report import tables
from torchkiln.validation import CheckResult, ValidationReport, verdict

SILENT = CheckResult(id="gpu.device", title="t", level="G", status="not-run", reason="no GPU", required=True)
MUTE = CheckResult(id="gpu.arch", title="t", level="G", status="not-run", reason="blocked by gpu.device", required=True)
GOOD = CheckResult(id="a.b", title="t", level="C", status="pass", required=True)


def said(*checks: CheckResult, unmatched: tuple[str, ...] = ()) -> str:
    """The sentence about a report."""
    found = verdict(checks, unmatched)
    report = ValidationReport(
        target="row", digest="", engine="none", host={}, checks=checks, verdict=found, unmatched=unmatched
    )
    return tables.plainly(report).removeprefix("row: incomplete, it has not passed: ")


@pytest.mark.parametrize(
    ("checks", "unmatched", "wanted"),
    [
        ((GOOD,), ("gpu.devize",), "required but unknown: gpu.devize"),
        ((GOOD, SILENT), (), "1 required check gave no answer (gpu.device: no GPU)"),
        ((MUTE,), (), "1 required check gave no answer (gpu.arch)"),
        (
            (SILENT, MUTE),
            ("x",),
            "2 required checks gave no answer (gpu.device, gpu.arch: no GPU); required but unknown: x",
        ),
        ((), (), "no check is required"),
    ],
)
def test_an_incomplete_report_says_what_is_missing(
    checks: tuple[CheckResult, ...], unmatched: tuple[str, ...], wanted: str
) -> None:
    """Only what there is to say is said: silent checks, their reasons, globs that name no check."""
    assert said(*checks, unmatched=unmatched) == wanted
