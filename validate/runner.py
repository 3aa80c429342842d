"""Run checks one after another, each in a process group of its own under its time limit."""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

from validate.child import TAIL
from validate.expect import Expect
from validate.model import ENVIRONMENT, FAIL, GPU, NOT_RUN, PASS, STATUSES, Answer, Loaded, Result

PROGRAM = Path(__file__).parent
GRACE = 2.0
"""Seconds between TERM and KILL."""
LARGEST_ANSWER = 4 << 20
TEMPORARY = "temporary"
SCRATCH_CHECK = "host.scratch"
"""The one that answers for the host where no temporary folder can be written."""
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Run:
    """What is the same for every check of a run."""

    expect: Expect
    host: Mapping[str, Any]
    folder: Path | None
    """Scratch, compile cache and temporary files, removed afterwards; None where no folder can be written."""
    environ: Mapping[str, str]


def matches(identifier: str, globs: Sequence[str]) -> bool:
    """Whether any of the globs covers a check id."""
    return any(fnmatch.fnmatchcase(identifier, glob) for glob in globs)


def selected(checks: Sequence[Loaded], globs: Sequence[str]) -> frozenset[str]:
    """The checks asked for, and those they need."""
    by_id = {loaded.id: loaded for loaded in checks}
    wanted = [loaded.id for loaded in checks if matches(loaded.id, globs)]
    found: set[str] = set()
    while wanted:
        identifier = wanted.pop()
        if identifier not in found and identifier in by_id:
            found.add(identifier)
            wanted += by_id[identifier].check.needs
    return frozenset(found)


def run_all(
    checks: Sequence[Loaded], run: Run, globs: Sequence[str], finished: Callable[[Answer], None]
) -> tuple[Answer, ...]:
    """Every check answers, whatever becomes of the others; `finished` hears each answer as it comes."""
    chosen = selected(checks, globs if run.folder else (*globs, SCRATCH_CHECK))
    answers: dict[str, Answer] = {}
    for loaded in checks:
        began = time.monotonic()
        result, applicable = _applicable(loaded, run.expect)
        if result is None:
            result = _reason_not_to(loaded, run, chosen, answers) or _started(loaded, run, answers)
        answers[loaded.id] = Answer(
            id=loaded.id,
            title=loaded.check.title,
            level=loaded.check.level,
            status=result.status,
            reason=result.reason,
            seconds=time.monotonic() - began,
            data=result.data,
            applicable=applicable,
            required=applicable and matches(loaded.id, run.expect.required),
            explanation=loaded.check.explanation,
        )
        finished(answers[loaded.id])
    return tuple(answers.values())


def _applicable(loaded: Loaded, row: Expect) -> tuple[Result | None, bool]:
    """The answer of a check that the row has no use for; a check that cannot say fails."""
    if loaded.error:
        return Result(FAIL, f"the check's file cannot be imported: {loaded.error}"), True
    try:
        applies = loaded.applies(row)
    except Exception as error:  # noqa: BLE001  any exception is the answer
        return Result(FAIL, f"applies() raised {type(error).__name__}: {error}"), True
    return (None, True) if applies else (Result(NOT_RUN, "not applicable to this row"), False)


def _reason_not_to(loaded: Loaded, run: Run, chosen: frozenset[str], answers: Mapping[str, Answer]) -> Result | None:
    """Why a check is not started, if it is not."""
    if loaded.id not in chosen:
        return Result(NOT_RUN, "not selected")
    if loaded.check.level == GPU and not run.host["devices"]:
        return Result(NOT_RUN, "no GPU")
    for need in loaded.check.needs:
        if need not in answers:
            return Result(NOT_RUN, f"blocked by {need}, which is not in the suite or needs this check itself")
        if answers[need].applicable and answers[need].status != PASS:
            return Result(NOT_RUN, f"blocked by {need} ({answers[need].status})")
    return None


def _without_folder(loaded: Loaded) -> Result:
    """One cause, one answer: nothing can be started, and only the check that is about this says what to do."""
    if loaded.id == SCRATCH_CHECK:
        return Result(ENVIRONMENT, "no temporary folder can be written")
    return Result(NOT_RUN, f"blocked by {SCRATCH_CHECK} ({ENVIRONMENT})")


def _started(loaded: Loaded, run: Run, answers: Mapping[str, Answer]) -> Result:
    """The answer of the check's own process."""
    if run.folder is None:
        return _without_folder(loaded)
    scratch = run.folder / "checks" / loaded.id
    scratch.mkdir(parents=True)
    request, answer, log = scratch / "request.json", scratch / "answer.json", scratch / "output.txt"
    work = scratch / "work"
    work.mkdir()
    document = {
        "id": loaded.id,
        "expect": asdict(run.expect),
        "host": run.host,
        "found": {need: answers[need].data for need in loaded.check.needs},
        "scratch": str(work),
        "answer": str(answer),
    }
    request.write_text(json.dumps(document, default=str), encoding="utf-8")
    environ = dict(run.environ) if loaded.check.plain else shared(run)
    command = [sys.executable, "-B", str(PROGRAM), "--answer", str(request)]
    with log.open("wb") as output:
        status = _limited(command, environ=environ, output=output.fileno(), cwd=work, seconds=loaded.check.seconds)
    result = _read(answer) or _silent(status, loaded.check.seconds, log)
    shutil.rmtree(scratch, ignore_errors=True)
    return result


def shared(run: Run) -> dict[str, str]:
    """The environment of most checks: one compile cache for the run, and no more threads than the container may use."""
    temporary = f"{run.folder}/{TEMPORARY}"  # torch keeps precompiled headers there, whatever its cache variable says
    caps = {"OMP_NUM_THREADS": run.host["threads"], "TORCHINDUCTOR_COMPILE_THREADS": run.host["compile_workers"]}
    return {
        **{name: str(value) for name, value in caps.items()},
        **run.environ,
        "TMPDIR": temporary,
        "TORCHINDUCTOR_CACHE_DIR": f"{run.folder}/inductor",
        "TRITON_CACHE_DIR": f"{run.folder}/triton",
        "TORCH_EXTENSIONS_DIR": f"{run.folder}/extensions",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _limited(
    command: Sequence[str], *, environ: Mapping[str, str], output: int, cwd: Path, seconds: float
) -> int | None:
    """The exit status, or None after the time limit; no process of the check outlives this call."""
    process = subprocess.Popen(  # noqa: S603  our own program
        list(command),
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return None
    finally:
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        _reap()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _read(path: Path) -> Result | None:
    """A well-formed answer, else None."""
    try:
        with path.open("rb") as stream:
            document = json.loads(stream.read(LARGEST_ANSWER))
        result = Result(document["status"], str(document["reason"]), dict(document["data"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if result.status in STATUSES else None


def _silent(status: int | None, seconds: float, log: Path) -> Result:
    """What it means that a check's process left no answer."""
    with contextlib.suppress(OSError):
        output = log.read_bytes()[-TAIL:].decode("utf-8", "replace")
        data = {"output": output}
        if status is None:
            return Result(FAIL, f"no answer within {seconds:g} s", data)
        if "No space left on device" in output:
            return Result(ENVIRONMENT, "the disk is full", data)
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        return Result(FAIL, f"its process ended without an answer, by {ended}", data)
    return Result(ENVIRONMENT, "its output could not be read")


@contextlib.contextmanager
def run_folder() -> Iterator[Path | None]:
    """A private folder for the run, or None where no temporary folder can be written."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="torchkiln-"))
    except OSError:
        yield None
        return
    try:
        (folder / TEMPORARY).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def adopt_orphans() -> None:
    """Become the parent of what a check leaves behind, so that it can be ended (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap() -> None:
    """End every process that a check left behind in a session of its own."""
    for pid in _children():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _children() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found
