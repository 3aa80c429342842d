"""Calls a function in worker processes that end with their parent, whatever ends it.

Processes, not threads: a small member of a wheel takes as long in Python as in C. They are spawned, since a fork
would copy locks that threads of the parent hold.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

Result = TypeVar("Result")
MOST = 8
"""Workers at most: past that the largest wheel decides how long all take, and each costs about 40 MB."""
_PR_SET_PDEATHSIG = 1


def each(
    function: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], *, workers: int = 0
) -> Iterator[tuple[int, Result]]:
    """Index and result of each job, as they finish; jobs start in their order.

    The first error ends the others' work and is raised here. Workers die with the thread that called, even by
    SIGKILL, and clean up first: they are sent SIGTERM, which unwinds them.
    """
    count = min(workers or len(os.sched_getaffinity(0)), len(jobs), MOST)
    context = multiprocessing.get_context("spawn")
    waiting = iter(enumerate(jobs))
    running: dict[Connection[Any, Any], tuple[SpawnProcess, int]] = {}
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, function, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            running[ours] = (process, -1)
            _hand_out(ours, running, waiting)
        while running:
            for ready in wait(list(running)):
                connection = next(one for one in running if one is ready)
                index = running[connection][1]
                result = _result(connection, running[connection][0])
                _hand_out(connection, running, waiting)
                yield index, result
    finally:
        for connection, (process, _) in running.items():
            process.terminate()
            connection.close()
        for process, _ in running.values():
            process.join()


@contextmanager
def beside(function: Callable[..., Result], *arguments: object) -> Iterator[Callable[[], Result]]:
    """Run one call in a process of its own meanwhile; what is yielded waits for its result, or raises its error.

    Leaving early ends the process as `each` does.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, function, os.getpid()), daemon=False)
    process.start()
    theirs.close()
    ours.send(arguments)
    try:
        yield lambda: _result(ours, process)
    finally:
        process.terminate()
        ours.close()
        process.join()


def _hand_out(
    connection: Connection[Any, Any],
    running: dict[Connection[Any, Any], tuple[SpawnProcess, int]],
    waiting: Iterator[tuple[int, tuple[Any, ...]]],
) -> None:
    """Give a worker its next job, or let it go."""
    process = running[connection][0]
    index, job = next(waiting, (-1, None))
    if job is None:
        del running[connection]
        connection.close()
        process.join()
    else:
        running[connection] = (process, index)
        connection.send(job)


def _result(connection: Connection[Any, Any], process: SpawnProcess) -> Any:  # noqa: ANN401  what the function gives
    try:
        succeeded, value = connection.recv()
    except EOFError as error:
        process.join()
        raise HostError(
            f"a worker process ended with status {process.exitcode}",
            remedy="was it killed for want of memory? ./inv doctor shows what there is",
        ) from error
    if not succeeded:
        raise value
    return value


def _serve(connection: Connection[Any, Any], function: Callable[..., Any], parent: int) -> None:
    """A worker: jobs in, results out, until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and sends SIGTERM
    signal.signal(signal.SIGTERM, _leave)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = (True, function(*job))
        except Exception as error:  # noqa: BLE001  every error is the parent's to judge
            answer = (False, error)
        connection.send(answer)


def _leave(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)
