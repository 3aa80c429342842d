"""A bubblewrap process from start to end: released once it is under its limits, followed, and always gone after."""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln import process
from torchkiln.engines import CAPTURED, GRACE, Limits, Outcome, guard
from torchkiln.engines import limits as bounds
from torchkiln.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE = 1 << 16
KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What bubblewrap is to do."""

    program: Path
    settings: tuple[str, ...]
    """Options; they travel in a file of memory, so that no other user of the host can read the variables in them."""
    data: tuple[tuple[bytes, str], ...] = ()
    """Content → where it is to be seen inside as a file, after `settings`."""
    last: tuple[str, ...] = ()
    """Options after the files."""
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Descriptors that become the command's own."""

    stdin: int = subprocess.DEVNULL
    stdout: int | None = subprocess.PIPE
    stderr: int | None = subprocess.PIPE
    before: tuple[str, ...] = ()
    """A program that prepares a terminal and then becomes bubblewrap."""


@dataclass(slots=True, kw_only=True)
class Child:
    """A started bubblewrap."""

    popen: subprocess.Popen[bytes]
    reports: int
    """Descriptor from which its JSON lines are read."""
    said: bytes = b""
    leader: int = -1
    """Descriptor (pidfd_open(2)) of the process that is PID 1 inside; -1 if it never came to be."""


def run(invocation: Invocation, limits: Limits, output: Callable[[bytes], None] | None) -> Outcome:
    """Run to the end with captured output; EngineError if bubblewrap could not set it up."""
    with started(invocation, limits, Streams()) as child:
        out, err, timed_out = _follow(child, limits.seconds, output)
        code = status(child, err, stopped=timed_out)
        return Outcome(status=code, stdout=out, stderr=err, timed_out=timed_out)


@contextmanager
def started(invocation: Invocation, limits: Limits, streams: Streams) -> Iterator[Child]:
    """A command that has begun, under its limits; however this is left, all its processes are gone after."""
    with ExitStack() as stack:
        groups = stack.enter_context(bounds.group(limits))
        child, gate = _start(invocation, streams, stack)
        stack.callback(end, child)
        leader = int(_report(child).get("child-pid", 0))
        with suppress(ProcessLookupError):  # it failed before the gate; `status` will tell
            if leader:
                child.leader = os.pidfd_open(leader)
                stack.callback(_forget, child)
                stack.enter_context(_guarded(child.leader))
                stack.callback(end, child)
                bounds.join(groups, leader, limits)
                os.write(gate, b"1")
        yield child


def _forget(child: Child) -> None:
    os.close(child.leader)
    child.leader = -1


@contextmanager
def _guarded(leader: int) -> Iterator[None]:
    """See to it that the command ends when this program is killed."""
    command = [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(leader)]
    with process.start(command, stdin=subprocess.PIPE, stdout=None, stderr=None, pass_fds=(leader,)) as watcher:
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                watcher.communicate(b".")


def _start(invocation: Invocation, streams: Streams, stack: ExitStack) -> tuple[Child, int]:
    files = [(_file(content, stack), place) for content, place in invocation.data]
    shown = [word for file, place in files for word in ("--perms", "0644", "--bind-data", str(file), place)]
    reports, report = _pipe(stack)
    waiting, gate = _pipe(stack)
    control = ("--json-status-fd", str(report), "--block-fd", str(waiting))
    settings = "\0".join((*invocation.settings, *shown, *invocation.last, *control, ""))
    arguments = _file(settings.encode("utf-8", "surrogateescape"), stack)
    popen = process.start(
        [*streams.before, str(invocation.program), "--args", str(arguments), "--", *invocation.argv],
        env={},
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        pass_fds=(*(file for file, _ in files), report, waiting, arguments),
        own_group=not streams.before,
    )
    for stream in (popen.stdout, popen.stderr):
        if stream is not None:
            stack.callback(stream.close)
    os.dup2(reports, report, inheritable=False)  # the writing end is bubblewrap's alone, so that reading ends with it
    return Child(popen=popen, reports=reports), gate


def _pipe(stack: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for descriptor in ends:
        stack.callback(os.close, descriptor)
    return ends


def _file(content: bytes, stack: ExitStack) -> int:
    """A file in memory, at its beginning."""
    descriptor = os.memfd_create("torchkiln")
    stack.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _report(child: Child) -> dict[str, Any]:
    """The next JSON line that bubblewrap writes; empty at the end."""
    while b"\n" not in child.said:
        piece = os.read(child.reports, PIECE)
        if not piece:
            return {}
        child.said += piece
    line, _, child.said = child.said.partition(b"\n")
    found: dict[str, Any] = json.loads(line)
    return found


def _follow(child: Child, seconds: float, output: Callable[[bytes], None] | None) -> tuple[bytes, bytes, bool]:
    """Both streams to their ends, and whether the time ran out."""
    deadline = time.monotonic() + seconds if seconds else float("inf")
    kept = {child.popen.stdout: bytearray(), child.popen.stderr: bytearray()}
    timed_out = False
    with selectors.DefaultSelector() as waiting:
        for stream in kept:
            if stream is not None:
                waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            left = deadline - time.monotonic()
            ready = waiting.select(None if left == float("inf") else max(0.0, left))
            if not ready and not timed_out:
                timed_out, deadline = True, float("inf")
                end(child)
            for key, _ in ready:
                piece = os.read(key.fd, PIECE)
                if not piece:
                    waiting.unregister(key.fileobj)
                elif output is not None:
                    output(piece)
                into = kept[key.fileobj]  # type: ignore[index]  # it is one of ours
                into += piece[: max(0, CAPTURED - len(into))]
    try:
        child.popen.wait(None if deadline == float("inf") else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        timed_out = True
        end(child)
    return bytes(kept[child.popen.stdout]), bytes(kept[child.popen.stderr]), timed_out


def end(child: Child) -> None:
    """TERM to the command's PID 1, KILL if that does not help; returns when every process inside is gone.

    The kernel buries all of a PID namespace before its first process, so that one's end is the end of all.
    """
    if child.leader < 0:
        child.popen.kill()
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
        if child.leader < 0 or select.select([child.leader], [], [], 0)[0]:
            break
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child.leader, number)
        select.select([child.leader], [], [], patience)
    child.popen.wait()


def status(child: Child, complaint: bytes, *, stopped: bool = False) -> int:
    """The command's exit status; EngineError if bubblewrap ended before the command began."""
    child.popen.wait()
    while report := _report(child):
        if "exit-code" in report:
            return int(report["exit-code"])
    if stopped or child.popen.returncode < 0:
        return KILLED
    raise EngineError("bubblewrap could not start the command", where=complaint.decode(errors="replace").strip())
