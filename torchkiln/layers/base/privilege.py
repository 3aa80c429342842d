"""Whether this user may build a base here: as root, or with a range of user ids of their own (subuid(5))."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import NamedTuple

from torchkiln import process

RANGES = (Path("/etc/subuid"), Path("/etc/subgid"))
TOOLS = ("newuidmap", "newgidmap")


class Lack(NamedTuple):
    """What is missing, and what helps."""

    what: str
    remedy: str


def lacks(program: str) -> Lack | None:
    """What mmdebstrap would fail for, by trying its namespace; None if nothing."""
    if shutil.which(program) is None:
        return Lack(f"{program} is not installed", f"apt-get install {program}")
    if os.geteuid() == 0:
        return None
    tried = process.run([program, "--unshare-helper", "true"])
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode(errors="replace").strip().splitlines() or ["it does not say why"]
    tools = tuple(tool for tool in TOOLS if shutil.which(tool) is None)
    ranges = tuple(str(path) for path in RANGES if not _has_range(path))
    texts = [path.read_text() for path in RANGES if path.is_file()]
    return explain(program, tools, ranges, user=_user(), said=said[-1], first=first_free("\n".join(texts)))


def first_free(rows: str) -> int:
    """The first id above every range, so that no two users share ids; 100000 where there is none (login.defs(5))."""
    parts = [row.split(":") for row in rows.splitlines()]
    ends = [int(part[1]) + int(part[2]) for part in parts if len(part) == 3 and "".join(part[1:]).isdigit()]  # noqa: PLR2004  USER:FIRST:COUNT
    return max([100000, *ends])


def explain(program: str, tools: tuple[str, ...], ranges: tuple[str, ...], *, user: str, said: str, first: int) -> Lack:
    """Missing programs and missing rows in words, with the commands that mend them; else what the program said."""
    if not tools and not ranges:
        return Lack(f"{program} can't make a user namespace: {said}", "allow user namespaces here, or build as root")
    missing = [*tools, *(f"a row for {user} in {path}" for path in ranges)]
    mend = ["apt-get install uidmap"] if tools else []
    if ranges:
        kinds = [path.rpartition("/")[2] for path in ranges]
        mend.append(" ".join(["usermod", *(f"--add-{kind}s {first}-{first + 65535}" for kind in kinds), user]))
    remedy = f"{' and '.join(mend)} (both as root)" if len(mend) > 1 else f"{mend[0]} (as root)"
    return Lack(f"{program} needs {', '.join(missing)} to work without root", f"{remedy}, or build as root")


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _has_range(path: Path) -> bool:
    """Rows are USER:FIRST:COUNT, by name or by number."""
    try:
        rows = path.read_text().splitlines()
    except OSError:
        return False
    return any(row.split(":")[0] in (_user(), str(os.geteuid())) for row in rows)
