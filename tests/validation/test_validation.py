from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sabotage.sabotaged_layers import LOCK, TARGET
from torchkiln.engines import Outcome
from torchkiln.errors import MatrixError
from torchkiln.matrix.target import Accelerator
from torchkiln.oci.image import Image
from torchkiln.plan import config
from torchkiln.validation import (
    CheckResult,
    check_required,
    container,
    expectation,
    identifiers,
    validate,
    verdict,
)
from torchkiln.validation.container import Asking
from validate import discovery, expect

if TYPE_CHECKING:
    from torchkiln.home import Home
    from torchkiln.validation.report import Status

SUITE = Path(__file__).parents[2] / "validate"


def result(status: Status, *, required: bool = True) -> CheckResult:
    """A check that answered."""
    return CheckResult(id="a.b", title="t", level="C", status=status, required=required)


@pytest.mark.parametrize(
    ("statuses", "wanted"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "fail"], "fail"),
        (["not-run", "fail"], "fail"),
        (["environment", "fail"], "fail"),
        (["pass", "not-run"], "incomplete"),
        (["pass", "environment"], "incomplete"),
        ([], "incomplete"),
    ],
)
def test_verdict(statuses: list[Status], wanted: str) -> None:
    """Fail before incomplete before pass; nothing asked is no pass."""
    assert verdict([result(status) for status in statuses]) == wanted


def test_optional_checks_do_not_decide() -> None:
    """What the row does not require may fail or not run."""
    optional = [result("fail", required=False), result("not-run", required=False)]
    assert verdict([result("pass"), *optional]) == "pass"


def test_required_glob_without_a_check_is_incomplete() -> None:
    """A misspelt requirement must not pass unnoticed."""
    assert verdict([result("pass")], unmatched=["compile.genrated"]) == "incomplete"


def test_required_globs_must_name_a_check() -> None:
    """A misspelt requirement is seen before anything is built, with the id that was meant; good ones pass."""
    good = replace(TARGET, required=("*", "static.*", "suite.run", "compile.generated"))
    check_required([good], SUITE)
    with pytest.raises(MatrixError) as raised:
        check_required([good, replace(TARGET, required=("compile.genrated", "zzzz*"))], SUITE)
    assert "'compile.genrated' (nearest: compile.generated), nor 'zzzz*'" in raised.value.what


def test_suite_reads_the_expectation() -> None:
    """What the gate writes is what validate/ understands, field by field."""
    row = expect.parse(expectation(TARGET, LOCK).decode())
    assert (row.target, row.python, row.torch, row.kind) == (TARGET.id, "3.11", "2.13.0", "cpu")
    assert row.pins == {"torch": "2.13.0+cpu"}
    assert row.required == ("*",)
    assert not row.gpu_row


def test_suite_learns_the_suffix_that_wheels_carry() -> None:
    """A ROCm row is called rocm62, and its wheels `+rocm6.2`."""
    rocm = replace(TARGET, accelerator=Accelerator(id="rocm62", kind="rocm", version="6.2"))
    assert expect.parse(expectation(rocm, LOCK).decode()).accelerator == "rocm6.2"


def test_gate_and_suite_name_the_same_checks() -> None:
    """Ids come from file names, on both sides, and every check can be imported without torch."""
    assert identifiers(SUITE) == discovery.identifiers()
    assert [loaded.error for loaded in discovery.discover() if loaded.error] == []


def test_needs_exist() -> None:
    """No check waits for one that is not in the suite."""
    known = set(identifiers(SUITE))
    assert {need for loaded in discovery.discover() for need in loaded.check.needs} <= known


def _asking(home: Home) -> Asking:
    return Asking(suite=SUITE, home=home, expectation=b"{}", checks=("*",), profile="smoke", gpus=False)


def _document(**changes: object) -> bytes:
    answer = {"level": "C", "status": "pass", "reason": "", "seconds": 1, "data": {}, "applicable": True}
    checks: list[dict[str, Any]] = [{"id": name, "title": name, **answer} for name in identifiers(SUITE)]
    return json.dumps({"checks": checks, "host": {"cpus": 2}, **changes}).encode()


def test_whole_report_is_taken(home: Home) -> None:
    """Every check of the checkout answered; lines before the report are not it."""
    run = container._answers(Outcome(status=0, stdout=b"noise\n" + _document() + b"\n", stderr=b""), _asking(home))
    assert {found.status for found in run.results} == {"pass"}
    assert run.host == {"cpus": 2}


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(status=127, stdout=b"", stderr=b"python3: not found"), "exit status 127: python3: not found"),
        (Outcome(status=137, stdout=b"", stderr=b"", timed_out=True), "did not end within"),
        (Outcome(status=0, stdout=_document(checks=[]), stderr=b""), "no answer for bench.pointwise"),
        (Outcome(status=1, stdout=_document(), stderr=b""), "exit status 1"),
        (Outcome(status=0, stdout=b"[]", stderr=b""), "no report"),
        (Outcome(status=0, stdout=_document(checks=[{"id": "a", "status": "fine"}]), stderr=b""), "no report"),
    ],
)
def test_image_cannot_shorten_its_list(home: Home, outcome: Outcome, said: str) -> None:
    """A report that is missing, partial or made up is one failure, and no check counts as passed."""
    suite, *others = container._answers(outcome, _asking(home)).results
    assert suite.status == "fail"
    assert said in suite.reason
    assert {found.status for found in others} == {"not-run"}
    assert {found.id for found in others} == set(identifiers(SUITE))


def test_progress_leaves_the_report_out() -> None:
    """Lines come whole, however the pieces are cut, and the JSON document stays for the report."""
    heard: list[bytes] = []
    hear = container._progress_only(heard.append)
    for piece in (b"pass  tor", b"ch.import\nfail  x", b'\n{"schema": 1, ', b'"checks": []}\n'):
        hear(piece)
    assert heard == [b"pass  torch.import\n", b"fail  x\n"]


def test_without_an_engine_static_checks_still_answer(home: Home) -> None:
    """The report says that nothing ran."""
    report = validate(None, Image(config=config(TARGET, LOCK)), TARGET, LOCK, home, suite=SUITE)
    by_id = {check.id: check for check in report.checks}
    assert by_id["static.labels"].status == "pass"
    assert by_id["static.versions"].status == "fail"  # an image without layers has no torch
    assert by_id["suite.run"].status == "not-run"
    assert (report.verdict, report.engine) == ("fail", "none")


def test_report_has_the_fields_others_rely_on(home: Home) -> None:
    """The contract of `validate --json`, as JSON can hold it."""
    report = validate(None, Image(config=config(TARGET, LOCK)), TARGET, LOCK, home, suite=SUITE)
    document = json.loads(json.dumps(report.to_json()))
    assert list(document) == ["schema", "target", "digest", "engine", "host", "checks", "summary", "verdict"]
    assert {"id", "title", "status", "reason", "seconds", "data"} <= set(document["checks"][0])
    assert document["digest"].startswith("sha256:")
