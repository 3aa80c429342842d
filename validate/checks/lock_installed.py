"""The installed distributions are those of the lock, no more and no less."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="installed packages equal the lock",
    explanation="Something was added, replaced or lost after the lock was made. Build again from the lock; in a "
    "derived image this names what the derivation changed.",
    seconds=60,
)


def run(expect: Expect, _context: Context) -> Result:
    """Names and versions, in the interpreter's own site-packages."""
    found = installed()
    problems = differences(found, expect.pins)
    data = {"installed": len(found), "locked": len(expect.pins)}
    if problems:
        return failed(f"{len(problems)} differences: {'; '.join(problems[:8])}", **data, differences=problems)
    return passed(f"{len(found)} packages", **data)


def installed() -> dict[str, str]:
    """Normalised name → version of every distribution below the interpreter's prefix or put before it on the path."""
    folders = [path for path in sys.path if not _of_the_system(path)]
    found: dict[str, str] = {}
    for item in metadata.distributions(path=folders):
        found.setdefault(normalised(item.metadata["Name"] or "?"), item.version)  # the first on the path is imported
    return found


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """In words, sorted by name."""
    missing = [f"{name} {version} is missing" for name, version in wanted.items() if name not in found]
    extra = [f"{name} {version} is not in the lock" for name, version in found.items() if name not in wanted]
    other = [
        f"{name} {found[name]}, the lock says {version}"
        for name, version in wanted.items()
        if name in found and not same(found[name], version)
    ]
    return sorted(missing + extra + other)


def same(found: str, wanted: str) -> bool:
    """Equal, the local part only where the lock states one: locks from the default index do not."""
    return found == wanted or ("+" not in wanted and found.partition("+")[0] == wanted)


def normalised(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _of_the_system(path: str) -> bool:
    """Debian's own modules belong to the base, not to the lock."""
    return Path(path).name == "dist-packages"
