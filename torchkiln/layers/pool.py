"""Calls a function in worker processes that end with their parent, whatever ends it; jobs may come while others run.

Processes, not threads: a small member of a wheel takes as long in Python as in C. They are spawned, since a fork
would copy locks that threads of the parent hold. Beside each stands a thread of the parent, which hands it jobs.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import pickle
import signal
import traceback
from concurrent.futures import Future, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from queue import PriorityQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

Result = TypeVar("Result")
_PR_SET_PDEATHSIG = 1


class Pool(Generic[Result]):
    """Workers that call one function; `started` makes one and ends it."""

    def __init__(self, function: Callable[..., Result], most: int) -> None:
        self._function, self._most = function, most
        self._jobs: PriorityQueue[tuple[float, int, tuple[Any, ...], Future[Result] | None]] = PriorityQueue()
        self._numbers = count()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._processes: list[SpawnProcess] = []
        self._unfinished = 0
        self._ended = False

    def submit(self, *job: Any, weight: float = 0) -> Future[Result]:  # noqa: ANN401  what the function takes
        """Have the function called with these arguments; of all jobs that wait, the heaviest is begun first.

        May be called from any thread. Workers are started as jobs come.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._ended:
                future.cancel()
                return future
            self._jobs.put((-weight, next(self._numbers), job, future))
            self._unfinished += 1
            if len(self._threads) < min(self._most, self._unfinished):
                self._threads.append(Thread(target=self._attend))
                self._threads[-1].start()
        return future

    def end(self) -> None:
        """End the workers, whatever they do; jobs that have not begun are cancelled."""
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.terminate()
            for _ in self._threads:
                self._jobs.put((-math.inf, next(self._numbers), (), None))
        for thread in self._threads:
            thread.join()
        while not self._jobs.empty():
            if future := self._jobs.get()[3]:
                future.cancel()
                future.set_running_or_notify_cancel()  # wakes whoever waits for it

    def _attend(self) -> None:
        """One worker's thread: the worker dies with it (prctl(2), PR_SET_PDEATHSIG), so it starts the worker too."""
        try:
            connection, process = self._worker()
        except OSError as error:  # whoever waits for a job must be told
            self._all(partial(_refuse, error))
            return
        with suppress(EOFError, OSError):
            connection.recv()  # it is up: only now is a job chosen, since a heavier one may have come meanwhile
        self._all(partial(_answer, connection, process))
        connection.close()
        process.join()

    def _worker(self) -> tuple[Connection[Any, Any], SpawnProcess]:
        """Start a worker; OSError if the system has no room for one."""
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._function, os.getpid()))
        process.start()
        theirs.close()
        with self._lock:
            self._processes.append(process)
            if self._ended:
                process.terminate()
        return connection, process

    def _all(self, answer: Callable[[tuple[Any, ...]], Result]) -> None:
        """Have jobs done as long as there are any."""
        while self._one(answer):
            with self._lock:
                self._unfinished -= 1

    def _one(self, answer: Callable[[tuple[Any, ...]], Result]) -> bool:
        """Have one job done; False when there will be no more."""
        _, _, job, future = self._jobs.get()
        if future is None:
            return False
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(answer(job))
            except BaseException as error:  # noqa: BLE001  whoever waits for the job judges it
                future.set_exception(error)
        return True


@contextmanager
def started(function: Callable[..., Result], *, workers: int = 0) -> Iterator[Pool[Result]]:
    """A pool of `workers`, by default one for each processor, of about 40 MB, as far as jobs wait; leaving ends them.

    They die with this process, even by SIGKILL, and clean up first: they are sent SIGTERM, which unwinds them.
    """
    pool = Pool(function, workers or len(os.sched_getaffinity(0)))
    try:
        yield pool
    finally:
        pool.end()


def each(
    function: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], *, workers: int = 0
) -> Iterator[tuple[int, Result]]:
    """Index and result of each job, as they finish; jobs start in their order.

    The first error ends the others' work and is raised here.
    """
    with started(function, workers=workers) as pool:
        futures = {pool.submit(*job, weight=-index): index for index, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()


@contextmanager
def beside(function: Callable[..., Result], *arguments: object) -> Iterator[Callable[[], Result]]:
    """Run one call in a process of its own meanwhile; what is yielded waits for its result, or raises its error.

    Leaving early ends the process.
    """
    with started(function, workers=1) as pool:
        yield pool.submit(*arguments).result


def _refuse(error: OSError, _job: tuple[Any, ...]) -> NoReturn:
    raise HostError(
        f"no worker process can be started: {error.strerror}",
        remedy="are there too many processes or open files, or too little memory? ./inv doctor shows what there is",
    ) from error


def _answer(connection: Connection[Any, Any], process: SpawnProcess, job: tuple[Any, ...]) -> Any:  # noqa: ANN401  what the function gives
    try:
        connection.send(job)
        succeeded, value = connection.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
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
    connection.send(None)
    try:
        _answer_all(connection, function)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to clean up, and no handler may raise at exit


def _answer_all(connection: Connection[Any, Any], function: Callable[..., Any]) -> None:
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = (True, function(*job))
        except Exception as error:  # noqa: BLE001  every error is the parent's to judge
            answer = (False, _portable(error))
        connection.send(answer)


def _portable(error: Exception) -> Exception:
    """The error, or if it doesn't come whole out of a pickle, one that says what it was and where it was raised."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301  our own, of a moment ago
            return error
    except Exception:  # noqa: BLE001, S110  whatever its own methods raise
        pass
    *_, last = traceback.extract_tb(error.__traceback__)
    return HostError(repr(error), where=f"{last.filename}:{last.lineno}, in {last.name}")


def _leave(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)
