"""Static checks of what is installed: metadata in the layers against the lock."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from torchkiln.inspect.subject import StaticCheck, Subject
from torchkiln.matrix.target import TRIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.matrix.target import Base

SYSTEM = "dist-packages/"


def installed(subject: Subject) -> dict[str, list[str]]:
    """Normalised name → every version whose metadata is visible in the merged tree."""
    found: dict[str, list[str]] = {}
    for layer in subject.layers:
        for path, stated in layer.versions.items():
            if path in subject.tree and not _of_system(path, subject.target.base):
                name, _, version = stated.partition(" ")
                versions = found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), [])
                versions += [] if version in versions else [version]
    return found


def _of_system(path: str, base: Base) -> bool:
    """Whether metadata is that of the base's own Python, whose packages the environment does not see."""
    place = posixpath.dirname(posixpath.dirname(base.interpreter)).lstrip("/")
    return SYSTEM in path or (base.kind != "debian" and path.startswith(f"{place}/lib/"))


def versions(subject: Subject) -> list[str]:
    """Each pin is installed once, in its version; nothing else is."""
    found = installed(subject)
    pins = {pin.name: pin.version for pin in subject.lock.pins}
    missing = [f"{name} {version} is missing" for name, version in pins.items() if name not in found]
    extra = [f"{name} {' and '.join(stated)} is not in the lock" for name, stated in found.items() if name not in pins]
    return missing + extra + _other(found, pins)


def suffix(subject: Subject) -> list[str]:
    """A local suffix of the trio is the row's accelerator."""
    wanted = subject.target.accelerator.variant
    found = installed(subject)
    stated = {name: version for name in TRIO for version in found.get(name, [])}
    return [
        f"{name} {version} is another variant than {wanted}"
        for name, version in stated.items()
        if "+" in version and version.partition("+")[2] != wanted
    ]


def _other(found: Mapping[str, list[str]], pins: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {' and '.join(found[name])}, the lock says {version}"
        for name, version in pins.items()
        if name in found and [_comparable(stated, version) for stated in found[name]] != [version]
    ]


def _comparable(stated: str, pinned: str) -> str:
    """Without the local suffix where the lock, made from the default index, states none."""
    return stated if "+" in pinned else stated.partition("+")[0]


CHECKS = (
    StaticCheck(
        id="static.versions",
        title="package metadata in the layers equals the lock",
        explanation="A layer of another wheel was composed, or one is missing. Build again; `./inv verify` tells "
        "whether the store is damaged.",
        judge=versions,
    ),
    StaticCheck(
        id="static.suffix",
        title="variants of the trio are the row's",
        explanation="The lock was made from the index of another accelerator. Lock the row again.",
        judge=suffix,
    ),
)
