"""The host leaves room to compile: a temporary folder with space and exec, and shared memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from validate.expect import Expect
from validate.model import Check, Context, Result, host_fault, passed

CHECK = Check(
    title="temporary folder and shared memory",
    explanation="The container was started without what compiling needs. Give /tmp space and exec "
    "(--tmpfs /tmp:exec,size=4g), or --shm-size=1g.",
    seconds=20,
    plain=True,
)
FREE = 512 << 20
SHM = 64 << 20
"""Docker's default; less breaks multi-process data loading at once."""


def run(_expect: Expect, context: Context) -> Result:
    """Each shortcoming is the host's fault."""
    temporary, shm = context.host["temporary"], context.host["shm"]
    facts = {"temporary": temporary, "shm": shm}
    folder = Path(tempfile.gettempdir())
    if not _executes(context.scratch):
        return host_fault(f"{folder} forbids execution (noexec): compiled code cannot be loaded from it", **facts)
    if (temporary["free_bytes"] or 0) < FREE:
        return host_fault(f"{folder} has less than {FREE >> 20} MB free", **facts)
    if (shm["total_bytes"] or 0) < SHM:
        return host_fault(f"/dev/shm is missing or smaller than {SHM >> 20} MB", **facts)  # noqa: S108  named, not used
    return passed(**facts)


def _executes(folder: Path) -> bool:
    script = folder / "executable"
    script.write_text("#!/bin/sh\nexit 0\n", encoding="ascii")
    script.chmod(0o700)
    try:
        return subprocess.run([os.fspath(script)], check=False).returncode == 0  # noqa: S603  our own file
    except PermissionError:
        return False
