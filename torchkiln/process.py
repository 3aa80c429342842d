"""The only door to subprocess: argument lists, never a shell."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    stdin: bytes | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run to the end and capture both streams; the caller judges the exit status.

    Raises HostError if the program does not exist, subprocess.TimeoutExpired after `timeout` seconds.
    """
    try:
        return subprocess.run(  # noqa: S603  the one place that may; arguments are lists
            list(command),
            env=dict(env) if env is not None else None,
            cwd=cwd,
            timeout=timeout,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise _missing(command[0]) from error


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = subprocess.PIPE,
    stderr: int | None = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
    own_group: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a program, by default in a process group of its own, so that it can be ended with all its children."""
    try:
        return subprocess.Popen(  # noqa: S603  the one place that may; arguments are lists
            list(command),
            env=dict(env) if env is not None else None,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            process_group=0 if own_group else None,
        )
    except FileNotFoundError as error:
        raise _missing(command[0]) from error


def _missing(program: str) -> HostError:
    return HostError(f"{program} is not installed", remedy="./inv doctor lists what is missing")
