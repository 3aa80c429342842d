from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from validate import discovery, doctor, host, runner, verdict
from validate.expect import Expect

SUITE = Path(__file__).parents[2] / "validate"
HEAD = """
from validate.model import GPU, Check, host_fault, passed, failed, not_run
CHECK = Check(title="t", explanation="do this"{more})
"""

Asked = tuple[int, str, dict[str, dict[str, Any]]]
"""Exit status, verdict, answers by id."""
Ask = Callable[..., Asked]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Run the real suite with other checks: name → (more arguments of Check, body of `run`)."""

    def run(checks: dict[str, tuple[str, str]], *arguments: str, **row: object) -> Asked:
        suite = tmp_path / "validate"
        shutil.copytree(SUITE, suite, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (suite / "checks").glob("[a-z]*.py"):
            path.unlink()
        for name, (more, body) in checks.items():
            lines = textwrap.indent(textwrap.dedent(body), "    ")
            text = (
                HEAD.format(more=more if "seconds=" in more else f", seconds=60{more}")
                + f"def run(expect, context):\n{lines}\n"
            )
            (suite / "checks" / f"{name}.py").write_text(text)
        expected = tmp_path / "expect.json"
        expected.write_text(json.dumps({"schema": 1, "required": ["*"], **row}))
        ended = subprocess.run(
            [sys.executable, str(suite), "--expect", str(expected), "--json", *arguments],
            capture_output=True,
            check=False,
            timeout=60,
        )
        document = json.loads(ended.stdout)
        return ended.returncode, document["verdict"], {entry["id"]: entry for entry in document["checks"]}

    return run


GOOD = ("", "return passed('fine', figure=1)")


def test_all_passed(ask: Ask) -> None:
    """Exit 0, verdict pass, and what was measured is in the report."""
    status, verdict, found = ask({"a_good": GOOD})
    assert (status, verdict) == (0, "pass")
    assert found["a.good"]["data"] == {"figure": 1}
    assert found["a.good"]["required"] is True


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("return failed('wrong')", "fail", "wrong"),
        ("raise ValueError('odd')", "fail", "ValueError: odd"),
        (r"raise ValueError('raised:\nOSError: no')", "fail", "ValueError: raised: OSError: no"),
        ("import os; os._exit(3)", "fail", "by exit status 3"),
        ("import os; os.kill(os.getpid(), 11)", "fail", "by signal 11"),
        ("import time; time.sleep(60)", "fail", "no answer within 3 s"),
        ("return 'nothing of the kind'", "fail", "without an answer"),
        ("raise OSError(28, 'No space left on device', '/x')", "environment", "the disk is full: /x"),
        ("return host_fault('noexec')", "environment", "noexec"),
        ("return not_run('not here')", "not-run", "not here"),
    ],
)
def test_one_bad_check_leaves_the_others_alone(ask: Ask, body: str, status: str, reason: str) -> None:
    """Whatever a check does, it gets a status with a reason, and its neighbour still passes."""
    code, verdict, found = ask({"a_bad": (", seconds=3" * ("sleep" in body), body), "b_good": GOOD})
    assert found["a.bad"]["status"] == status
    assert reason in found["a.bad"]["reason"]
    assert found["b.good"]["status"] == "pass"
    assert (code, verdict) == ((20, "fail") if status == "fail" else (21, "incomplete"))


def test_file_that_cannot_be_imported_fails(ask: Ask) -> None:
    """A damaged check is a failing check, never one less."""
    code, _, found = ask({"a_bad": ("", "this is no Python"), "b_good": GOOD})
    assert found["a.bad"]["status"] == "fail"
    assert "cannot be imported" in found["a.bad"]["reason"]
    assert (code, found["b.good"]["status"]) == (20, "pass")


def test_blocked_check_names_its_cause(ask: Ask) -> None:
    """A need that did not pass turns dependants into not-run, along the chain, not red."""
    _, _, found = ask(
        {
            "a_cause": ("", "return failed('wrong')"),
            "b_next": (", needs=('a.cause',)", "return passed()"),
            "c_last": (", needs=('b.next',)", "return passed()"),
            "d_lost": (", needs=('no.such',)", "return passed()"),
        }
    )
    assert found["b.next"]["reason"] == "blocked by a.cause (fail)"
    assert found["c.last"]["reason"] == "blocked by b.next (not-run)"
    assert found["d.lost"]["status"] == "not-run"


def test_checks_run_after_what_they_need_and_see_its_data(ask: Ask) -> None:
    """Order follows needs, not names."""
    late = (", needs=('z.early',)", "return passed(str(context.found['z.early']['figure']))")
    _, _, found = ask({"a_late": late, "z_early": GOOD})
    assert found["a.late"]["reason"] == "1"


@pytest.mark.parametrize("globs", [doctor.CHECKS, ("toolchain.headers",)])
def test_without_a_temporary_folder_one_check_is_to_blame(globs: tuple[str, ...]) -> None:
    """No check can be started; only host.scratch says why and what to do, the others are blocked by it."""
    run = runner.Run(expect=Expect(required=globs), host=host.facts(), folder=None, environ={})
    answers = runner.run_all(discovery.discover(), run, globs, lambda _answer: None)
    asked = {answer.id: answer for answer in answers if answer.reason != "not selected" and answer.applicable}
    blame = asked.pop("host.scratch")
    assert (blame.status, "--tmpfs /tmp:exec" in blame.explanation) == ("environment", True)
    assert asked["toolchain.headers"].reason == "blocked by host.scratch (environment)"
    assert {(answer.status, answer.reason[:10]) for answer in asked.values()} == {("not-run", "blocked by")}
    assert verdict.verdict(answers) == "incomplete"


def test_circle_ends(ask: Ask) -> None:
    """Two checks that need each other do not run, and say so."""
    one, two = (", needs=('b.two',)", "return passed()"), (", needs=('a.one',)", "return passed()")
    _, _, found = ask({"a_one": one, "b_two": two})
    assert {found[name]["status"] for name in ("a.one", "b.two")} == {"not-run"}


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")
def test_gpu_check_without_gpu_is_incomplete(ask: Ask) -> None:
    """No GPU is never a pass; the check is labelled unproven."""
    code, verdict, found = ask({"a_gpu": (", level=GPU", "return passed()"), "b_good": GOOD})
    assert (found["a.gpu"]["status"], found["a.gpu"]["reason"]) == ("not-run", "no GPU")
    assert found["a.gpu"]["unproven"] is True
    assert (code, verdict) == (21, "incomplete")


def test_optional_failure_does_not_decide(ask: Ask) -> None:
    """Only what the row requires counts."""
    code, _, found = ask({"a_good": GOOD, "b_bad": ("", "return failed('wrong')")}, required=["a.*"])
    assert (code, found["b.bad"]["status"], found["b.bad"]["required"]) == (0, "fail", False)


def test_selection_brings_needs_and_stays_incomplete(ask: Ask) -> None:
    """--checks runs the named ones and what they need; required ones left out make it incomplete."""
    checks = {"a_need": GOOD, "b_asked": (", needs=('a.need',)", "return passed()"), "c_other": GOOD}
    code, _, found = ask(checks, "--checks", "b.*")
    assert [found[name]["status"] for name in ("a.need", "b.asked", "c.other")] == ["pass", "pass", "not-run"]
    assert (code, found["c.other"]["reason"]) == (21, "not selected")


def test_unknown_check_is_a_wrong_command_line(tmp_path: Path) -> None:
    """Before anything runs, and with the check that was probably meant."""
    row = tmp_path / "row.json"
    row.write_text('{"schema": 1}')
    command = [sys.executable, str(SUITE), "--expect", str(row), "--checks", "python.*", "--checks", "toch.import"]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert b"toch.import; the nearest is torch.import" in ended.stderr


def test_nothing_of_a_check_lives_on(ask: Ask, tmp_path: Path) -> None:
    """After the time limit even a process in a session of its own is gone."""
    note = tmp_path / "pid"
    body = f"""
    import subprocess, time
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open({str(note)!r}, "w").write(str(child.pid))
    time.sleep(600)
    """
    _, _, found = ask({"a_slow": (", seconds=3", body)})
    assert "no answer within" in found["a.slow"]["reason"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_checks_share_a_compile_cache_unless_plain(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for a run, made for it; a plain check sees what the image says."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/of/the/image")
    body = "import os; return passed(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    _, _, found = ask({"a_one": ("", body), "b_two": ("", body), "c_plain": (", plain=True", body)})
    assert found["a.one"]["reason"] == found["b.two"]["reason"] != "/of/the/image"
    assert found["c.plain"]["reason"] == "/of/the/image"


@pytest.mark.parametrize("arguments", [[], ["--expect", "/no/such/file"]])
def test_without_a_row_nothing_is_judged(arguments: list[str]) -> None:
    """An unset or unreadable expectation is a wrong command line, not an empty pass."""
    ended = subprocess.run([sys.executable, str(SUITE), *arguments], capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, b"")


@pytest.mark.parametrize("text", ["[]", '{"schema": 2}', '{"schema": 1, "pythn": "3.11"}', "{"])
def test_expectation_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    """A misspelt key would otherwise promise nothing."""
    row = tmp_path / "row.json"
    row.write_text(text)
    command = [sys.executable, str(SUITE), "--expect", str(row)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 2
