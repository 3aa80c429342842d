"""Bound what a sandboxed command uses: control groups where this user may make them, else limits of the process."""

from __future__ import annotations

import math
import os
import resource
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.engines import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = Path("/sys/fs/cgroup")
PERIOD = 100_000
"""Microseconds over which CPU time is shared out; the kernel's default."""
_PREFIX = "torchkiln-"


def settings(limits: Limits, *, unified: bool) -> dict[str, dict[str, str]]:
    """Controller → file → value, in order; the names differ between cgroup v2 (`unified`) and v1."""
    quota = str(int(limits.cpus * PERIOD))
    memory, processes = str(limits.memory_bytes), str(limits.processes)
    found: dict[str, dict[str, str]] = {}
    if limits.memory_bytes:
        found["memory"] = (
            {"memory.max": memory, "memory.swap.max": "0"} if unified else {"memory.limit_in_bytes": memory}
        )
    if limits.cpus:
        found["cpu"] = {"cpu.max": f"{quota} {PERIOD}"} if unified else {"cpu.cfs_quota_us": quota}
    if limits.processes:
        found["pids"] = {"pids.max": processes}
    return found


@contextmanager
def group(limits: Limits) -> Iterator[tuple[Path, ...]]:
    """Control groups that enforce the limits, removed afterwards; none where they can't be made or nothing is asked."""
    made: list[Path] = []
    try:
        _sweep()
        try:
            _make(limits, made)
        except OSError:  # half a bound is none: the caller falls back
            while made:
                _remove(made.pop())
        yield tuple(made)
    finally:
        for folder in made:
            _remove(folder)


def enforced() -> bool:
    """Whether control groups can be made here: tried."""
    with group(Limits(memory_bytes=1 << 30, cpus=1, processes=100)) as folders:
        return bool(folders)


def join(folders: tuple[Path, ...], pid: int, limits: Limits) -> None:
    """Put a process, which has no children yet, under the limits."""
    for folder in folders:
        (folder / "cgroup.procs").write_text(str(pid))
    if not folders and limits.memory_bytes:
        # Private memory of each process; address space would stop CUDA, which reserves far more than it uses.
        resource.prlimit(pid, resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    if not folders and limits.cpus:
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(pid, usable[: max(1, math.ceil(limits.cpus))])


def _make(limits: Limits, made: list[Path]) -> None:
    unified = (GROUPS / "cgroup.controllers").exists()
    wanted = settings(limits, unified=unified)
    name = f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    if unified and wanted:
        with suppress(OSError):  # usually on already
            (GROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in wanted))
    for controller, values in wanted.items():
        folder = GROUPS / name if unified else GROUPS / controller / name
        if folder not in made:
            folder.mkdir()
            made.append(folder)
        for file, value in values.items():
            if file != "memory.swap.max" or (folder / file).exists():
                (folder / file).write_text(value)


def _remove(folder: Path) -> None:
    """A group is busy until the kernel has buried its last process."""
    for _ in range(100):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def _sweep() -> None:
    """Remove groups whose owner was killed before it could."""
    for folder in (*GROUPS.glob(f"{_PREFIX}*"), *GROUPS.glob(f"*/{_PREFIX}*")):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        if not Path("/proc", owner).exists():
            with suppress(OSError):
                folder.rmdir()
