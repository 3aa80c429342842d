"""The command line, as a user calls it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[1]
ROW = "torch213-cpu"
FIND_LINKS = os.environ.get("TORCHKILN_FIND_LINKS", "")
HOME = os.environ.get("TORCHKILN_HOME", "")


def another_python() -> tuple[str, Mapping[str, str]]:
    """The system's interpreter, if it is another patch release of this minor, and how it finds our packages.

    This interpreter otherwise.
    """
    system, ours = "/usr/bin/python3", platform.python_version()
    ask = (system, "-c", "import platform; print(platform.python_version())")
    found = subprocess.run(ask, capture_output=True, check=False) if os.access(system, os.X_OK) else None
    theirs = found.stdout.decode().strip() if found else ""
    if theirs == ours or theirs.rpartition(".")[0] != ours.rpartition(".")[0]:
        return sys.executable, {}
    return system, {"PYTHONPATH": sysconfig.get_path("purelib")}


def another_locale(folder: Path) -> Mapping[str, str]:
    """One that encodes, sorts and cases otherwise: Turkish in Latin-5, made in a folder if this machine can do that.

    C without Python's exception for it otherwise: it encodes nothing but ASCII.
    """
    if shutil.which("localedef") and Path("/usr/share/i18n/locales/tr_TR").exists():
        subprocess.run(["localedef", "-i", "tr_TR", "-f", "ISO-8859-9", str(folder / "tr_TR")], check=True)
        return {"LC_ALL": "tr_TR", "LOCPATH": str(folder)}
    return {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


SOMEBODY = 65534
"""Who owns nothing here."""


def another_user() -> Sequence[str]:
    """What runs a command as somebody else who can read what we can; nothing where we are not root, who alone can."""
    if os.geteuid() != 0:
        return ()
    capability = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    return ("setpriv", "--reuid", str(SOMEBODY), "--regid", str(SOMEBODY), "--clear-groups", *capability)


@dataclass(frozen=True, slots=True)
class Kiln:
    """The command line, as a user calls it, with a cache folder of its own."""

    home: Path
    python: str = sys.executable

    def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        **options: Any,  # noqa: ANN401  Popen's
    ) -> subprocess.Popen[bytes]:
        """Start a task, by another command if there is one before it; stdout and stderr are captured."""
        variables = {**os.environ, "TORCHKILN_HOME": str(self.home), "TORCHKILN_FIND_LINKS": FIND_LINKS, **(env or {})}
        command = [*before, self.python, "-X", "utf8", "-m", "invoke", *arguments]  # as ./inv does
        return subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )

    def run(self, *arguments: str, status: int = 0, env: Mapping[str, str] | None = None) -> str:
        """Run a task to its end; what it printed on stdout."""
        with self.start(*arguments, env=env) as process:
            out, err = process.communicate(timeout=1500)
        assert process.returncode == status, f"{arguments} ended with {process.returncode}:\n{err.decode()[-4000:]}"
        return out.decode()

    def refused(self, *arguments: str, status: int, env: Mapping[str, str] | None = None) -> str:
        """Run a task that must fail; what it said on stderr."""
        with self.start(*arguments, env=env) as process:
            out, err = process.communicate(timeout=1500)
        assert process.returncode == status, f"{arguments} ended with {process.returncode}:\n{err.decode()[-4000:]}"
        assert b"Traceback" not in err
        assert out == b""
        return err.decode()


@dataclass(frozen=True, slots=True)
class Row:
    """The built row."""

    kiln: Kiln
    entry: Mapping[str, Any]
    """Its entry in `build --json`."""
