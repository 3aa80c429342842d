"""Install what Debian offers, where it is missing and this user may."""

from __future__ import annotations

import os
import shutil

from torchkiln import process
from torchkiln.console import step
from torchkiln.errors import HostError


def install(program: str, package: str) -> None:
    """Have a program; HostError with the command where it can't be installed."""
    if shutil.which(program):
        return
    remedy = f"apt-get install {package}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise HostError(f"{program} is not installed", remedy=remedy)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(remedy):
        process.run(["apt-get", "update", "-qq"], env=env)
        done = process.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], env=env)
    if done.returncode != 0:
        raise HostError(f"{remedy} failed: {done.stderr.decode(errors='replace').strip()[-500:]}", remedy=remedy)
