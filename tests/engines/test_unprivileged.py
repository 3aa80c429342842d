from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

STRANGER = 12345
ROOT = Path(__file__).parent.parent.parent


def as_stranger(*command: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run as a user without any privilege, with the packages of this interpreter."""
    packages = sysconfig.get_path("purelib")
    switch = ["setpriv", "--reuid", str(STRANGER), "--regid", str(STRANGER), "--clear-groups"]
    environment = [
        "env",
        "-i",
        f"HOME={home}",
        "PATH=/usr/bin:/bin",
        f"PYTHONPATH={packages}",
        "PYTHONDONTWRITEBYTECODE=1",
        f"HYPOTHESIS_STORAGE_DIRECTORY={home}/hypothesis",
    ]
    return subprocess.run([*switch, *environment, *command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="without root the other tests run unprivileged anyway")
def test_everything_holds_without_privilege() -> None:
    """The sandbox's and rootfs's own tests pass for a user who is nobody; only what needs many users is skipped."""
    home = Path(f"/var/tmp/torchkiln-stranger-{os.getpid()}")
    home.mkdir()
    os.chown(home, STRANGER, STRANGER)
    try:
        minor = f"/usr/bin/python3.{sys.version_info[1]}"
        able = [
            name
            for name in (sys.executable, minor)
            if not as_stranger(name, "-c", "import pytest", home=home).returncode
        ]
        if not able:
            pytest.skip("other users can't read this interpreter and its packages")
        chosen = ["tests/rootfs", "tests/engines/test_sandbox.py", "tests/engines/test_contract.py"]
        options = ["-q", "-rs", "-p", "no:cacheprovider", "--basetemp", str(home / "base")]
        done = as_stranger(able[0], "-m", "pytest", *options, *chosen, home=home)
        assert done.returncode == 0, done.stdout + done.stderr
        skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED") and "docker:" not in line]
        allowed = ("one user", "need root", "can't enforce limits", "without root", "no control groups")
        assert all(any(reason in line for reason in allowed) for line in skipped), skipped
        assert "passed" in done.stdout
    finally:
        shutil.rmtree(home)
