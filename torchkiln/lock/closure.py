"""Whether all that a row and its wheels ask for is pinned, in a version that will do; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchkiln.errors import LockError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torchkiln.lock.lockfile import Lock, Pin


def check(lock: Lock, requires: Mapping[str, Sequence[str]], *, python: str, target: str) -> None:
    """LockError with every requirement that the pins do not meet, and who has it.

    `requires` is the Requires-Dist of each pin by name; `python` the full version or the minor of the base's,
    `target` the id of the row.
    """
    machine = lock.asked.platform.partition(" ")[0] or "x86_64"
    problems = dict.fromkeys(unmet(lock, requires, python=python, machine=machine))
    if problems:
        raise LockError(
            f"the lock of {target} is not complete: {'; '.join(problems)}",
            where=f"Python {python}, {machine}",
            remedy=f"./inv lock --target {target}",
        )


def _environment(python: str, machine: str) -> dict[str, str]:
    """What markers are evaluated against, in the image (dependency specifiers, "Environment Markers")."""
    full = python if python.count(".") > 1 else f"{python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": ".".join(full.split(".")[:2]),
        "sys_platform": "linux",
    }


def applies(requirement: Requirement, *, python: str, machine: str) -> bool:
    """Whether a requirement's marker holds in the image."""
    marker = requirement.marker
    return marker is None or marker.evaluate({**_environment(python, machine), "extra": ""})


def unmet(lock: Lock, requires: Mapping[str, Sequence[str]], *, python: str, machine: str) -> Iterator[str]:
    """Follow the row's requirements and every pin's; an extra counts as soon as somebody asks for it."""
    pins = {pin.name: pin for pin in lock.pins}
    environment = _environment(python, machine)
    left = [(text, "", "the row") for text in lock.asked.requirements]
    left += [(text, "", name) for name in pins for text in requires.get(name, ())]
    seen = {(name, "") for name in pins}
    while left:
        text, extra, owner = left.pop(0)
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield f"{owner} asks for {text!r}, which is not a requirement"
            continue
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        yield from _unmet(requirement, pins.get(name), owner if not extra else f"{owner}[{extra}]")
        for wanted in sorted(canonicalize_name(extra) for extra in requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                left += [(text, wanted, name) for text in requires.get(name, ())]


def _unmet(requirement: Requirement, pin: Pin | None, owner: str) -> Iterator[str]:
    asked = f"{requirement.name}{requirement.specifier}"
    if pin is None:
        yield f"{owner} needs {asked}, and no {canonicalize_name(requirement.name)} is pinned"
    elif not requirement.specifier.contains(pin.version, prereleases=True):
        yield f"{owner} needs {asked}, and {pin.name} {pin.version} is pinned"
