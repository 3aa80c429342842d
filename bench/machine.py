"""The machine that a benchmark ran on, and the versions of what took part."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from torchkiln import process

TOOLS = {
    "docker": ("/usr/bin/docker", "--version"),
    "buildah": ("buildah", "--version"),
    "registry": ("docker-registry", "--version"),
}


def describe() -> dict[str, str | float]:
    """Processor, memory, kernel, and what load there was at the end."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory[1]) / 1e6, 1) if memory else 0.0,
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(*command) for name, command in TOOLS.items()},
    }


def version(*command: str) -> str:
    """The first number that a program says of itself; empty if it is not there."""
    if not any((Path(folder) / command[0]).exists() for folder in os.get_exec_path()):
        return ""
    said = process.run(command).stdout.decode(errors="replace")
    found = re.search(r"\d+\.\d+[\w.+~-]*", said)
    return found[0] if found else ""


def commit(root: Path) -> str:
    """What was measured; with a + where the checkout was changed; empty where it is no checkout of git."""
    git = ("git", "-C", str(root))
    if not version("git", "--version"):
        return ""
    head = process.run([*git, "rev-parse", "--short=12", "HEAD"]).stdout.decode().strip()
    changed = process.run([*git, "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
    return head + ("+" if changed else "")
