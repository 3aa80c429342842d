"""images/locks/boundaries.lock ↔ where the large deflate streams of locked layers' wheels end, one wheel a line.

So a machine that has never seen a wheel makes its locked layer without inflating most of it. Nothing here is believed:
like what the cache remembers (`boundaries`), it is used for a layer that is known, whose digest tells.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchkiln.console import warn
from torchkiln.errors import LockError
from torchkiln.layers import boundaries
from torchkiln.layers.inflate import Boundary
from torchkiln.lock import layerlock

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    Found = Mapping[int, Boundary]
    """By the places of streams in their wheel."""

LARGE = 1 << 20
"""Bytes before the last block from which on a stream is noted: of PyTorch's wheels 40 in 17,000, 98 % of all bytes."""
_HEADING = (
    "# One wheel a line: sha256, and of each large deflate stream place:last block:unused bits; by"
    " ./inv lock --layers.\n"
)
_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64})(?P<streams>(?: \d{1,15}:\d{1,15}:[0-7])+)")


def render(found: Mapping[str, Found]) -> str:
    """The file of these wheels by sha256; `parse` gives them back."""
    return _HEADING + "".join(f"{sha256} {_streams(streams)}\n" for sha256, streams in sorted(found.items()) if streams)


def _streams(found: Found) -> str:
    return " ".join(f"{place}:{each.last}:{each.unused}" for place, each in sorted(found.items()))


def parse(text: str, *, where: str = "boundaries.lock") -> dict[str, Found]:
    """Boundaries by sha256 of their wheels; LockError for a line that is none. Lines of one wheel are put together."""
    wheels: dict[str, Found] = {}
    for line in filter(None, text.splitlines()):
        if match := _LINE.fullmatch(line):
            numbers = (map(int, stream.split(":")) for stream in match["streams"].split())
            streams = {place: Boundary(last, unused) for place, last, unused in numbers}
            wheels[match["sha256"]] = {**wheels.get(match["sha256"], {}), **streams}
        elif not line.startswith("#"):
            raise LockError(
                f"{line[:120]!r} tells no boundaries",
                where=where,
                remedy="git restore the file, or delete that line",
            )
    return wheels


def read(path: Path) -> Mapping[str, Found]:
    """The boundaries in a file, by wheel; none if there is no file, LockError if it cannot be read."""
    return parse(layerlock.text(path), where=str(path))


def spared(path: Path) -> Mapping[str, Found]:
    """The same for a build, which goes without them rather than fail."""
    try:
        return read(path)
    except LockError as error:
        warn(f"{error.where}: {error.what}; without it more is inflated")
        return {}


def give(folder: Path, locked: Mapping[str, Found], wheels: Collection[str]) -> None:
    """Let the cache remember of these wheels what it does not, but the lock."""
    for sha256 in wheels:
        if known := locked.get(sha256):
            boundaries.write(folder, sha256, {**known, **boundaries.read(folder, sha256)})


def large(folder: Path, wheels: Collection[str]) -> dict[str, Found]:
    """Of these wheels what the cache remembers of large streams, as the lock has it."""
    found = {sha256: boundaries.read(folder, sha256) for sha256 in wheels}
    return {
        sha256: streams
        for sha256, every in found.items()
        if (streams := {place: each for place, each in every.items() if each.last >> 3 >= LARGE})
    }
