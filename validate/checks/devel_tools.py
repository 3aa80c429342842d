"""cmake, ninja and git answer."""

from __future__ import annotations

import shutil

from validate.checks.toolchain_compilers import command, headline
from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="cmake, ninja and git answer",
    explanation="Building extensions from source needs them. cmake and ninja are wheels of the flavour's lock, git is "
    "a package of its base; PATH must lead to /opt/venv/bin and /usr/bin.",
    seconds=30,
)
TOOLS = ("cmake", "ninja", "git")


def applies(expect: Expect) -> bool:
    """Rows that promise tools."""
    return expect.flavour == "devel"


def run(_expect: Expect, _context: Context) -> Result:
    """Each is found and says its version."""
    versions, problems = {}, []
    for tool in TOOLS:
        path = shutil.which(tool)
        answer = command([path, "--version"]) if path else None
        if answer is None:
            problems.append(f"{tool} is not on PATH")
        elif answer.returncode:
            problems.append(f"{tool} does not run: {headline(answer.stdout)}")
        else:
            versions[tool] = answer.stdout.splitlines()[0].rpartition(" ")[2]
    told = ", ".join(f"{tool} {version}" for tool, version in versions.items())
    return failed("; ".join(problems), versions=versions) if problems else passed(told, versions=versions)
