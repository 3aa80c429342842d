"""Which wheels a platform takes, best first, as pip decides it (packaging.tags; PEP 425, 600)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

if TYPE_CHECKING:
    from collections.abc import Iterator

LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of glibc 2.17, 2.12 and 2.5 (PEP 600)."""


def supported(python: str, arch: str, glibc: str) -> tuple[Tag, ...]:
    """Every tag that a Python (`3.11`) takes on a machine (`x86_64`) with a glibc (`2.36`), most specific first."""
    major, minor = (int(part) for part in python.split("."))
    platforms = list(_platforms(arch, int(glibc.split(".")[1])))
    interpreter = f"cp{major}{minor}"
    return (
        *cpython_tags((major, minor), [interpreter], platforms),
        *compatible_tags((major, minor), interpreter, platforms),
    )


def _platforms(arch: str, glibc: int) -> Iterator[str]:
    oldest = 5 if arch == "x86_64" else 17  # PEP 600: other machines begin with manylinux2014
    yield f"linux_{arch}"
    for minor in range(glibc, oldest - 1, -1):
        yield f"manylinux_2_{minor}_{arch}"
        if minor in LEGACY:
            yield f"{LEGACY[minor]}_{arch}"


def rank(filename: str, tags: tuple[Tag, ...]) -> tuple[int, tuple[int, str]] | None:
    """How well a wheel fits, higher is better, a build tag breaking ties as in pip; None if it does not fit."""
    try:
        _, _, build, own = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    places = [place for place, tag in enumerate(tags) if tag in own]
    return (-places[0], build or (-1, "")) if places else None
