"""Python.h lies where this interpreter says, and is of its version."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="Python.h of this interpreter",
    explanation="Inductor and Triton compile against Python.h. Add the headers of exactly this Python (python3-dev) to "
    "the base's packages; another minor's headers do not help.",
    seconds=20,
)
VERSION = re.compile(r'^#define\s+PY_VERSION\s+"([^"]+)"', re.MULTILINE)


def run(_expect: Expect, _context: Context) -> Result:
    """At sysconfig's include path; the version is in patchlevel.h."""
    folder = Path(sysconfig.get_path("include"))
    data = {"include": str(folder)}
    if not (folder / "Python.h").is_file():
        return failed(f"Python.h is not in {folder}, where this interpreter looks for it", **data)
    stated = VERSION.search((folder / "patchlevel.h").read_text(encoding="utf-8"))
    version = stated[1] if stated else "unknown"
    running = sys.version.split()[0]
    if version.rstrip("+") != running.rstrip("+"):
        return failed(f"headers in {folder} are of Python {version}, the interpreter is {running}", **data)
    return passed(f"{version} in {folder}", **data)
