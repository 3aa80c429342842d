"""Which wheels a platform takes, best first, as pip decides it (packaging.tags; PEP 425, 600)."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packaging.tags import Tag

LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of glibc 2.17, 2.12 and 2.5 (PEP 600)."""


@cache
def supported(python: str, arch: str, glibc: str) -> Mapping[Tag, int]:
    """Every tag that a Python (`3.11`) takes on a machine (`x86_64`) with a glibc (`2.36`), most specific first.

    Each has its place, and the answer is kept: a family asks for the same few platforms thousands of times.
    """
    major, minor = (int(part) for part in python.split("."))
    platforms = list(_platforms(arch, int(glibc.split(".")[1])))
    interpreter = f"cp{major}{minor}"
    ordered = (
        *cpython_tags((major, minor), [interpreter], platforms),
        *compatible_tags((major, minor), interpreter, platforms),
    )
    return MappingProxyType({tag: place for place, tag in enumerate(ordered)})


def _platforms(arch: str, glibc: int) -> Iterator[str]:
    oldest = 5 if arch == "x86_64" else 17  # PEP 600: other machines begin with manylinux2014
    yield f"linux_{arch}"
    for minor in range(glibc, oldest - 1, -1):
        yield f"manylinux_2_{minor}_{arch}"
        if minor in LEGACY:
            yield f"{LEGACY[minor]}_{arch}"


def rank(filename: str, tags: Mapping[Tag, int]) -> tuple[int, tuple[int, str]] | None:
    """How well a wheel fits, higher is better, a build tag breaking ties as in pip; None if it does not fit."""
    try:
        _, _, build, own = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    places = [tags[tag] for tag in own if tag in tags]
    return (-min(places), build or (-1, "")) if places else None
