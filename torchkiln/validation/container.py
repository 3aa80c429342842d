"""Run validate/ in an image: every check of the checkout answers, whatever the image does.

The suite is mounted from the checkout with what it has to expect, so an image can neither change nor shorten it:
the checks are known here by their files' names, even where the image's run does not mention them.
"""

from __future__ import annotations

import json
import platform
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchkiln.engines import Command, Limits, Mount
from torchkiln.errors import EngineError
from torchkiln.validation.report import NOT_SELECTED, CheckResult, Status
from torchkiln.validation.suite import SUITE_CHECK, identifiers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchkiln.engines import Engine, Outcome
    from torchkiln.home import Home
    from torchkiln.oci.image import Image

GATE = "/opt/torchkiln-gate"
"""Where the suite and the expectation are mounted; apart from /opt/torchkiln, the image's own copy."""
OTHER_USER = "1042:0"
"""A uid that no passwd row names (pytorch#140765)."""
OTHER_USER_CHECK = "compile.random_uid"
EXITS = (0, 20, 21)
"""Statuses with which validate/ ends when it has answered (validate/verdict.py)."""
SECONDS = 1800.0
SHM_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What the suite is run with."""

    suite: Path
    home: Home
    expectation: bytes
    checks: tuple[str, ...]
    """Globs that each name a check of the suite; none: the image need not be run."""
    profile: str
    gpus: bool
    """Whether the row is for GPUs; the engine is asked for them where it has any."""
    output: Callable[[bytes], None] | None = None
    """Hears the suite's progress as it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the suite answered in a container."""

    results: tuple[CheckResult, ...]
    host: Mapping[str, Any]


def run(engine: Engine | None, image: Image, asking: Asking) -> Run:
    """The suite's answers; without a usable engine every check is not-run."""
    if not asking.checks:
        return _unanswered(asking, "not-run", NOT_SELECTED)
    lacks = "no engine was asked for" if engine is None else engine.lacks()
    if engine is None or lacks:
        return _unanswered(asking, "not-run", f"the image was not run: {lacks}")
    with tempfile.TemporaryDirectory(dir=asking.home.temporary) as folder:
        expected = Path(folder, "expect.json")
        expected.write_bytes(asking.expectation)
        expected.chmod(0o644)
        Path(folder).chmod(0o755)
        try:
            command = _command(asking, expected, gpus=asking.gpus and "gpu" not in engine.restrictions())
            heard = _progress(asking, lambda line: not _comes_later(line))
            first = _answers(engine.run(image, command, output=heard), asking)
            return _with_other_user(engine, image, asking, command, first)
        except EngineError as error:
            return _unanswered(asking, "environment", f"the engine could not run the image: {error.what}")


def _comes_later(line: bytes) -> bool:
    """Whether this is the other user's check saying that it needs a container of its own."""
    return line.split()[:2] == [b"not-run", OTHER_USER_CHECK.encode()] and b"blocked by" not in line


def _progress(asking: Asking, wanted: Callable[[bytes], bool]) -> Callable[[bytes], None] | None:
    """Whole lines for people; the report, one line of JSON that comes the same way, is left out."""
    output, rest = asking.output, b""
    if output is None:
        return None

    def hear(piece: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + piece).split(b"\n")
        said = [line for line in lines if line and not line.startswith(b"{") and wanted(line)]
        if said:
            output(b"\n".join(said) + b"\n")

    return hear


def _command(asking: Asking, expected: Path, *, gpus: bool) -> Command:
    return Command(
        argv=_argv(asking, asking.checks),
        mounts=(
            Mount(source=asking.suite.absolute(), target=f"{GATE}/validate"),
            Mount(source=expected, target=f"{GATE}/expect.json"),
        ),
        gpus=gpus,
        limits=Limits(seconds=SECONDS, shm_bytes=SHM_BYTES),
    )


def _argv(asking: Asking, checks: Sequence[str]) -> tuple[str, ...]:
    globs = (part for glob in checks for part in ("--checks", glob))
    program = ("python3", f"{GATE}/validate", "--expect", f"{GATE}/expect.json", "--json")
    return (*program, "--profile", asking.profile, *globs)


def _with_other_user(engine: Engine, image: Image, asking: Asking, command: Command, first: Run) -> Run:
    """The same image started as a uid that nobody knows, for the one check that asks for it."""
    wanted = next((result for result in first.results if result.id == OTHER_USER_CHECK), None)
    if wanted is None or wanted.status != "not-run" or wanted.reason.startswith(("blocked", NOT_SELECTED)):
        return first
    if "users" in engine.restrictions():
        reason = f"the {engine.name} engine has one user only here; run as root, or with Docker"
        return _replaced(first, replace(wanted, reason=reason))
    argv = _argv(asking, (OTHER_USER_CHECK,))
    command = replace(command, argv=argv, user=OTHER_USER, unset=("HOME", "USER", "LOGNAME"))
    heard = _progress(asking, lambda line: OTHER_USER_CHECK.encode() in line)
    second = _answers(engine.run(image, command, output=heard), asking)
    return _replaced(first, next(result for result in second.results if result.id == OTHER_USER_CHECK))


def _replaced(run: Run, result: CheckResult) -> Run:
    return replace(run, results=tuple(result if old.id == result.id else old for old in run.results))


def _answers(outcome: Outcome, asking: Asking) -> Run:
    """The suite's report, checked against the checkout: a check that did not answer is one that did not run."""
    try:
        document = json.loads(outcome.stdout.strip().rpartition(b"\n")[2])
        found = {str(entry["id"]): _result(entry) for entry in document["checks"]}
        host = cast("dict[str, Any]", dict(document["host"]))
    except (ValueError, KeyError, TypeError):
        return _unanswered(asking, "fail", _why_silent(outcome))
    missing = [name for name in identifiers(asking.suite) if name not in found]
    if missing or outcome.status not in EXITS:
        said = f"no answer for {', '.join(missing)}" if missing else f"exit status {outcome.status}"
        return replace(_unanswered(asking, "fail", f"the suite's report is not whole: {said}"), host=host)
    return Run(results=(_suite("pass", ""), *found.values()), host=host)


def _result(entry: Mapping[str, Any]) -> CheckResult:
    """From the report of validate/; ValueError for a status that is none."""
    if entry["status"] not in {"pass", "fail", "not-run", "environment"}:
        raise ValueError(entry["status"])
    return CheckResult(
        id=str(entry["id"]),
        title=str(entry["title"]),
        level=str(entry["level"]),
        status=entry["status"],
        reason=str(entry["reason"]),
        seconds=float(entry["seconds"]),
        data=dict(entry["data"]),
        applicable=bool(entry["applicable"]),
        explanation=str(entry.get("explanation", "")),
    )


def _why_silent(outcome: Outcome) -> str:
    if outcome.timed_out:
        return f"the suite did not end within {SECONDS:g} s"
    lines = (outcome.stderr or outcome.stdout).decode("utf-8", "replace").strip().splitlines()
    return f"the suite gave no report: exit status {outcome.status}: {' / '.join(lines[-3:])[:500]}"


def _unanswered(asking: Asking, status: Status, reason: str) -> Run:
    """One cause, one red check: the others did not run, or nobody asked for them."""
    because = reason if reason == NOT_SELECTED else f"blocked by {SUITE_CHECK} ({status})"
    others = tuple(
        CheckResult(
            id=name,
            title=name,
            level="G" if name.startswith("gpu.") else "C",
            status="not-run",
            reason=because,
            applicable=asking.gpus or not name.startswith("gpu."),
        )
        for name in identifiers(asking.suite)
    )
    host = {"machine": platform.machine(), "kernel": platform.release()}
    return Run(results=(_suite(status, reason), *others), host=host)


def _suite(status: Status, reason: str) -> CheckResult:
    return CheckResult(
        id=SUITE_CHECK,
        title="the suite ran in the image and every check that was asked answered",
        level="C",
        status=status,
        reason=reason,
        explanation="Without the suite's report little is known of the image; the reason has its last words.",
    )
