"""What the host gives this container: processors, memory, folders, devices; read, never changed."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

COMPILE_WORKER_BYTES = 2 << 30
"""A C++ compiler over torch's headers, and the worker that starts it."""
CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids")


def facts() -> dict[str, Any]:
    """Everything the report says about the host; a fact that cannot be read is None."""
    return {
        "machine": platform.machine(),
        "kernel": platform.release(),
        "processor": _processor(),
        "cpus": cpus(),
        "memory_bytes": memory_bytes(),
        "processes": _limit("pids.max", "pids.max"),
        "threads": threads(),
        "compile_workers": compile_workers(),
        "load": _load(),
        "temporary": _folder(_temporary()),
        "shm": _folder("/dev/shm"),  # noqa: S108  asked about, not used
        "devices": devices(),
        "uid": os.getuid(),
        "gid": os.getgid(),
    }


def cpus() -> float:
    """Processors this container may use: its quota, else its affinity (pytorch#191385: never the host's cores)."""
    available = float(len(os.sched_getaffinity(0)))
    quota = _quota()
    return min(available, quota) if quota else available


def memory_bytes() -> int | None:
    """The smaller of the machine's memory and the container's limit."""
    limits = (_limit("memory.max", "memory.limit_in_bytes"), _meminfo())
    return min((limit for limit in limits if limit), default=None)


def threads() -> int:
    """Threads worth starting."""
    return max(1, int(cpus()))


def compile_workers() -> int:
    """Compilers worth starting at once, by processors, memory and process limit."""
    caps = [threads(), 16]
    memory = memory_bytes()
    processes = _limit("pids.max", "pids.max")
    caps += [int(memory // COMPILE_WORKER_BYTES)] if memory else []
    caps += [int(processes // 32)] if processes else []
    return max(1, min(caps))


def devices() -> list[str]:
    """Device files of GPUs: NVIDIA, AMD's kernel driver, WSL's."""
    found = [*sorted(Path("/dev").glob("nvidia[0-9]*")), Path("/dev/kfd"), Path("/dev/dxg")]
    return [str(path) for path in found if path.exists()]


def _quota() -> float | None:
    try:
        limit, period = _first("cpu.max").split()  # cgroup v2
    except (OSError, ValueError):
        limit, period = _text("cpu.cfs_quota_us"), _text("cpu.cfs_period_us")
    if limit.isdigit() and period.isdigit() and int(period):
        return int(limit) / int(period)
    return None


def _limit(v2: str, v1: str) -> int | None:
    """A limit by its file in cgroup v2 or v1; v1 says "none" with a number near 2**63."""
    text = _text(v2) or _text(v1)
    value = int(text) if text.isdigit() else 0
    return value if 0 < value < 1 << 60 else None


def _first(name: str) -> str:
    for folder in CGROUPS:
        path = Path(folder, name)
        if path.is_file():
            return path.read_text(encoding="ascii").strip()
    raise FileNotFoundError(name)


def _text(name: str) -> str:
    try:
        return _first(name)
    except (OSError, ValueError):
        return ""


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return None


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return ""


def _folder(path: str) -> dict[str, Any]:
    try:
        usage = shutil.disk_usage(path)
        noexec = bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return {"path": path, "total_bytes": None, "free_bytes": None, "noexec": None}
    return {"path": path, "total_bytes": usage.total, "free_bytes": usage.free, "noexec": noexec}
