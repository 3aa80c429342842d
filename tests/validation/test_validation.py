from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sabotage.sabotaged_layers import LOCK, TARGET
from torchkiln.engines import Outcome
from torchkiln.errors import MatrixError, UsageError
from torchkiln.matrix.target import Accelerator
from torchkiln.oci.image import Image
from torchkiln.plan import config
from torchkiln.report import tables
from torchkiln.validation import (
    CheckResult,
    ValidationReport,
    check_required,
    container,
    expectation,
    identifiers,
    selection,
    validate,
    verdict,
)
from torchkiln.validation.container import Asking
from validate import discovery, expect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchkiln.engines import Command
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


def test_progress_leaves_the_report_out(home: Home) -> None:
    """Lines come whole, however the pieces are cut, and the JSON document stays for the report."""
    heard: list[bytes] = []
    hear = container._progress(replace(_asking(home), output=heard.append), lambda _line: True)
    assert hear is not None
    for piece in (b"pass  tor", b"ch.import\nfail  x", b'\n{"schema": 1, ', b'"checks": []}\n'):
        hear(piece)
    assert heard == [b"pass  torch.import\n", b"fail  x\n"]


@dataclass
class TwoUsers:
    """An engine in which the suite answers as it does in a container: one check only for the unknown user."""

    name: str = "two-users"
    asked: list[Command] = field(default_factory=list)

    def lacks(self) -> str:
        """Nothing."""
        return ""

    def restrictions(self) -> tuple[str, ...]:
        """It has every user, but no GPU."""
        return ("gpu",)

    def run(self, image: Image, command: Command, *, output: Callable[[bytes], None] | None = None) -> Outcome:
        """The other user's check passes only where the gate sets up that user."""
        del image
        self.asked.append(command)
        status = "pass" if command.user else "not-run"
        document = json.loads(_document())
        (other,) = [check for check in document["checks"] if check["id"] == container.OTHER_USER_CHECK]
        other |= {"status": status, "reason": "needs a container of its own"}
        if output is not None:
            output(f"pass        torch.import   1.6 s\n{status:<12}compile.random_uid   0.0 s\n".encode())
        return Outcome(status=21, stdout=json.dumps(document).encode(), stderr=b"")

    def load(self, image: Image, tags: Sequence[str] = ()) -> str:
        """Not asked."""
        raise NotImplementedError

    def shell(self, image: Image, command: Command) -> int:
        """Not asked."""
        raise NotImplementedError


def test_progress_agrees_with_the_report(home: Home) -> None:
    """The other user's check is heard once, from the container in which it runs."""
    heard: list[bytes] = []
    run = container.run(TwoUsers(), Image(config=config(TARGET, LOCK)), replace(_asking(home), output=heard.append))
    assert [result.status for result in run.results if result.id == "compile.random_uid"] == ["pass"]
    said = b"".join(heard).decode().splitlines()
    assert [line.split()[:2] for line in said] == [["pass", "torch.import"], ["pass", "compile.random_uid"]]


def _validated(home: Home, *checks: str) -> ValidationReport:
    image = Image(config=config(TARGET, LOCK))
    return validate(TwoUsers(), image, TARGET, LOCK, home, suite=SUITE, checks=checks)


@pytest.mark.parametrize(("glob", "nearest"), [("toch.import", "torch.import"), ("static.envs", "static.env")])
def test_unknown_check_is_refused_before_anything_runs(home: Home, glob: str, nearest: str) -> None:
    """A misspelt selection names the check that was meant."""
    with pytest.raises(UsageError, match=glob) as caught:
        _validated(home, "static.*", glob)
    assert caught.value.remedy == f"--checks {nearest}"


def test_suite_does_not_answer_where_it_was_not_asked(home: Home) -> None:
    """Static checks alone need no container, and what was not asked says so."""
    report = _validated(home, "static.labels")
    assert {check.id for check in report.checks if check.status == "pass"} == {"static.labels"}
    assert {check.reason for check in report.checks if check.applicable and check.status == "not-run"} == {
        "not selected"
    }
    assert not next(check for check in report.checks if check.id == "gpu.device").applicable


def test_container_hears_only_of_its_own_checks(home: Home) -> None:
    """Globs of static checks stay here; asking whether the suite is whole asks all of it."""
    assert selection.inside(("static.*", "python.*"), SUITE) == ("python.*",)
    assert selection.inside(("suite.run", "python.*"), SUITE) == ("*",)
    engine = TwoUsers()
    validate(engine, Image(config=config(TARGET, LOCK)), TARGET, LOCK, home, suite=SUITE, checks=("static.*",))
    assert engine.asked == []


def test_selection_says_that_it_is_no_verdict(home: Home) -> None:
    """How many passed and how many were left out; a host with a GPU would not help."""
    report = _validated(home, "static.labels", "static.env")
    said = tables.plainly(report)
    others = len([check for check in report.checks if check.required]) - 2
    assert report.verdict == "incomplete"
    assert f"2 selected checks passed; the row's other {others} required checks were not selected" in said
    assert "no verdict on the row" in said


def test_selection_still_names_what_gave_no_answer(home: Home) -> None:
    """A selected check without an answer is told from those that nobody asked."""
    report = validate(
        None, Image(config=config(TARGET, LOCK)), TARGET, LOCK, home, suite=SUITE, checks=("static.env", "torch.import")
    )
    assert not report.only_selected
    assert "suite.run" in tables.plainly(report)


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
