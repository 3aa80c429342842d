"""Every installed package finds what it requires, as `pip check` asks."""

from __future__ import annotations

import contextlib
import importlib
from importlib import metadata
from types import ModuleType

from validate.checks.lock_installed import installed, normalised
from validate.expect import Expect
from validate.model import Check, Context, Result, failed, not_run, passed

CHECK = Check(
    title="requirements of installed packages are met",
    explanation="A package was installed whose requirements the rest does not meet; it may break when used. Let the "
    "resolver decide: put it into the row, and lock again.",
    seconds=60,
)
EVALUATORS = ("packaging", "pip._vendor.packaging", "setuptools._vendor.packaging")


def run(_expect: Expect, _context: Context) -> Result:
    """Markers are evaluated for this interpreter; extras are nobody's promise."""
    requirements = _evaluator()
    if requirements is None:
        return not_run(f"none of {', '.join(EVALUATORS)} is there to read requirements with")
    found = installed()
    problems = []
    for distribution in metadata.distributions():
        if normalised(distribution.metadata["Name"] or "?") not in found:
            continue
        for line in distribution.requires or ():
            problem = unmet(requirements.Requirement(line), found)
            problems += [f"{distribution.metadata['Name']} {distribution.version} {problem}"] if problem else []
    return failed("; ".join(sorted(set(problems))[:8])) if problems else passed(packages=len(found))


def unmet(requirement: object, found: dict[str, str]) -> str:
    """What is wrong with a requirement, in words; empty if nothing is."""
    marker = requirement.marker  # type: ignore[attr-defined]
    if marker is not None and not marker.evaluate({"extra": ""}):
        return ""
    name = normalised(requirement.name)  # type: ignore[attr-defined]
    if name not in found:
        return f"requires {requirement}, which is not installed"
    if not requirement.specifier.contains(found[name], prereleases=True):  # type: ignore[attr-defined]
        return f"requires {requirement}, but {found[name]} is installed"
    return ""


def _evaluator() -> ModuleType | None:
    for name in EVALUATORS:
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{name}.requirements")
    return None
