"""Compile caches go where this uid can write, whatever its name and home."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="compile cache folders are explicit and writable",
    explanation="torch.compile would fail, or fall back to a folder named after a user that may not exist. Set the "
    "named variable to a folder this uid can write and execute from, for example below /tmp.",
    seconds=20,
    plain=True,
    needs=("host.scratch",),
)
VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")


def run(_expect: Expect, _context: Context) -> Result:
    """Each variable is set, and its folder can be made and written."""
    problems = [problem for problem in map(_problem, VARIABLES) if problem]
    folders = {name: os.environ.get(name) for name in VARIABLES}
    return failed("; ".join(problems), folders=folders) if problems else passed(folders=folders)


def _problem(variable: str) -> str:
    folder = os.environ.get(variable, "")
    if not folder:
        return f"{variable} is not set"
    nearest = next(path for path in (Path(folder), *Path(folder).parents) if os.path.exists(path))  # noqa: PTH110  a forbidden folder is no error
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{variable}={folder} cannot be written by {_me()}: {error.strerror} at {_described(nearest)}"


def _me() -> str:
    return f"{os.getuid()}:{os.getgid()}"


def _described(path: Path) -> str:
    found: Any = path.stat()
    return f"{path} ({stat.filemode(found.st_mode)}, owner {found.st_uid}:{found.st_gid})"
