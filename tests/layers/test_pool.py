"""Worker processes: results and errors come back, and no worker outlives its parent, however it ends."""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import time
from concurrent.futures import CancelledError
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import pytest

from torchkiln import process
from torchkiln.errors import HostError, WheelError
from torchkiln.layers import pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen


def double(number: int) -> int:
    """A job that succeeds."""
    return number * 2


def leave_slowly(number: int) -> int:
    """Have the worker take its time when it ends."""
    atexit.register(time.sleep, 0.5)
    return number


def refuse(number: int) -> int:
    """A job that fails at 3."""
    if number == 3:
        raise WheelError("three", where="here", remedy="four")
    return number


def die(number: int) -> int:
    """A job whose process is gone at 2, as when memory runs out."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def linger(folder: str, number: int) -> int:
    """A job that works for a minute, and tidies up if it is stopped."""
    partial = Path(folder) / f"partial-{number}-{os.getpid()}"
    partial.touch()
    try:
        time.sleep(60)
    finally:
        partial.unlink()
    return number


def test_every_result_with_its_index() -> None:
    """In the order in which they finish, each once."""
    assert dict(pool.each(double, [(number,) for number in range(9)], workers=3)) == {n: 2 * n for n in range(9)}
    assert list(pool.each(double, [])) == []


def test_the_first_error_is_raised_whole() -> None:
    """With what, where and remedy, and the other workers are ended."""
    with pytest.raises(WheelError) as caught:
        dict(pool.each(refuse, [(number,) for number in range(9)], workers=2))
    assert (caught.value.what, caught.value.where, caught.value.remedy) == ("three", "here", "four")


class AwkwardError(Exception):
    """Made of more than it keeps as its arguments, as other libraries' are: a pickle of it can't be read."""

    def __init__(self, reason: str, log: object) -> None:
        super().__init__(reason)
        self.log = log


def fail_awkwardly(log: bool) -> None:  # noqa: FBT001  a job
    """A job whose error can't travel: its pickle can't be read, or can't even be written."""
    raise AwkwardError("no room for it", iter(()) if log else Lock())


@pytest.mark.parametrize("log", [False, True])
def test_an_error_that_cannot_travel_is_told_all_the_same(log: bool) -> None:  # noqa: FBT001  as above
    """What it was and where it was raised; and the worker goes on."""
    with pool.started(fail_awkwardly, workers=1) as workers:
        for _ in range(2):
            with pytest.raises(HostError, match=r"^AwkwardError\('no room for it'\)") as raised:
                workers.submit(log).result(timeout=60)
    assert raised.value.where.startswith(f"{__file__}:")
    assert raised.value.where.endswith(", in fail_awkwardly")


def test_a_worker_that_dies_is_an_error() -> None:
    """Not a hang: its exit status is named."""
    with pytest.raises(HostError, match="ended with status -9"):
        dict(pool.each(die, [(number,) for number in range(5)], workers=2))


def test_a_worker_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no room for another process nobody waits for ever, jobs that come later included."""

    def no_room(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(SpawnProcess, "start", no_room)
    with pool.started(double, workers=1) as workers:
        for number in (1, 2):
            with pytest.raises(HostError, match="no worker process can be started: Resource"):
                workers.submit(number).result(timeout=20)


def note(folder: str, number: int, awaited: str = "") -> int:
    """A job that says that it began, and ends when a file is there."""
    with (Path(folder) / "begun").open("a") as begun:
        begun.write(f"{number} ")
    while awaited and not (Path(folder) / awaited).exists():
        time.sleep(0.01)
    return number


def begun(folder: Path) -> list[str]:
    """The jobs that began, in order."""
    path = folder / "begun"
    return path.read_text().split() if path.exists() else []


def test_a_job_may_come_while_another_runs(tmp_path: Path) -> None:
    """It is begun at once if a worker is free, and both results come to who asked."""
    with pool.started(note, workers=2) as workers:
        first = workers.submit(str(tmp_path), 1, "go")
        while begun(tmp_path) != ["1"]:
            time.sleep(0.01)
        assert workers.submit(str(tmp_path), 2).result() == 2
        assert not first.done()
        (tmp_path / "go").touch()
        assert first.result() == 1


def meet(folder: str, number: int, count: int) -> int:
    """A job that ends when so many are at work; TimeoutError if they never are."""
    (Path(folder) / str(number)).touch()
    for _ in range(600):
        if len(list(Path(folder).iterdir())) == count:
            return number
        time.sleep(0.05)
    raise TimeoutError


@pytest.mark.parametrize("processors", [3, 12])
def test_there_is_a_worker_for_each_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    """Unless another number is asked for: so many jobs run at once."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    with pool.started(meet) as workers:
        jobs = [workers.submit(str(tmp_path), number, processors) for number in range(processors)]
        assert [job.result() for job in jobs] == list(range(processors))


def test_the_heaviest_job_that_waits_is_next(tmp_path: Path) -> None:
    """Whatever the order in which they came: the last to end then ends soon."""
    with pool.started(note, workers=1) as workers:
        jobs = [workers.submit(str(tmp_path), 0, "go")]
        while not begun(tmp_path):
            time.sleep(0.01)
        jobs += [workers.submit(str(tmp_path), number, weight=number) for number in (1, 3, 2)]
        (tmp_path / "go").touch()
        assert [job.result() for job in jobs] == [0, 1, 3, 2]
    assert begun(tmp_path) == ["0", "3", "2", "1"]


def test_leaving_ends_jobs_that_run_and_those_that_wait(tmp_path: Path) -> None:
    """Whoever waits for one in a thread is woken, and a job that comes afterwards is not begun."""
    with pool.started(note, workers=1) as workers:
        running = workers.submit(str(tmp_path), 1, "never")
        waiting = workers.submit(str(tmp_path), 2)
        while not begun(tmp_path):
            time.sleep(0.01)
    with pytest.raises(HostError, match="ended with status 143"):
        running.result(timeout=0)
    for job in (waiting, workers.submit(str(tmp_path), 3)):
        with pytest.raises(CancelledError):
            job.result(timeout=0)
    assert begun(tmp_path) == ["1"]


PROGRAM = """
import sys
sys.path.insert(0, ".")
from tests.layers import test_pool
from torchkiln.layers import pool
if __name__ == "__main__":
    dict(pool.each(test_pool.linger, [(sys.argv[1], 1), (sys.argv[1], 2)], workers=2))
"""


IDLE = """
import sys, time
sys.path.insert(0, ".")
from pathlib import Path
from tests.layers import test_pool
from torchkiln.layers import pool
if __name__ == "__main__":
    with pool.started(test_pool.leave_slowly, workers=2) as workers:
        list(map(lambda job: job.result(), [workers.submit(2), workers.submit(4)]))
        Path(sys.argv[1], "idle").touch()
        time.sleep(60)
"""


def test_idle_workers_say_nothing_when_their_parent_is_killed(tmp_path: Path) -> None:
    """They hear of it twice, by the end of the line and by a signal, and both at once is no error."""
    script = tmp_path / "program.py"
    script.write_text(IDLE)
    started = process.start([sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": "."})
    _until((tmp_path / "idle").exists, started)
    started.kill()
    assert started.communicate(timeout=30) == (b"", b"")


def parent(folder: Path) -> Popen[bytes]:
    """A process whose two workers are busy."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    started = process.start([sys.executable, str(script), str(folder)], env={**os.environ, "PYTHONPATH": "."})
    _until(lambda: len(list(folder.glob("partial-*"))) == 2, started)
    return started


def _until(condition: Callable[[], bool], started: Popen[bytes]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    started.kill()
    pytest.fail(f"waited in vain: {started.communicate()[1].decode()}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, kill, kill -9 of the parent alone: its workers stop within moments and leave nothing half done."""
    started = parent(tmp_path)
    workers = [int(path.name.rpartition("-")[2]) for path in tmp_path.glob("partial-*")]
    started.send_signal(number)
    started.communicate(timeout=30)  # before the jobs end by themselves
    _until(lambda: not list(tmp_path.glob("partial-*")), started)
    _until(lambda: not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers), started)


def test_one_call_beside_the_caller(tmp_path: Path) -> None:
    """Its result or its error when asked for; leaving early stops it and lets it tidy up."""
    with pool.beside(double, 21) as result:
        assert result() == 42
    with pool.beside(refuse, 3) as result, pytest.raises(WheelError, match="three"):
        result()
    with pool.beside(linger, str(tmp_path), 1):
        for _ in range(600):
            if list(tmp_path.glob("partial-*")):
                break
            time.sleep(0.05)
        else:
            pytest.fail("the call did not begin")
    assert list(tmp_path.glob("partial-*")) == []
