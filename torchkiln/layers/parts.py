"""Wheels that are too big for one layer → which of their files each part holds, by weight; pure but for `check`.

What a file weighs is known from the wheel's directory, so that a split is known, or refused, before anything is made.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torchkiln.errors import PlanError
from torchkiln.layers import install, members
from torchkiln.layers.archive import Entry, directory, header
from torchkiln.layers.runs import FEW, runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torchkiln.layers.install import File
    from torchkiln.lock.lockfile import Pin
    from torchkiln.specs import Part, WheelSpec

JOINT = 16
"""Bytes that joining a stream to the next takes at most: its padding, and an empty stored block (RFC 1951)."""
ENDS = 64
"""Bytes of a blob that holds nothing: head and tail of gzip, and the end of the archive."""
REMEDY = "a publish target with a larger max_layer_bytes, or none"


def weigh(file: File) -> int:
    """Bytes that a file takes of a blob at most, its header and padding included, its folders not."""
    content = file.content
    if isinstance(content, bytes):
        size = _compressed(len(content))
    else:  # what the zip stored is compressed on its way, and what does not shrink grows a little
        size = _compressed(content.compressed) if content.method == members.STORED else content.compressed
    return size + JOINT + _heading(Entry(path=file.path, kind="file", mode=file.mode, size=file.size))


def _compressed(size: int) -> int:
    """What deflate makes of bytes at most: stored blocks of at most 65,535 bytes, with 5 each (RFC 1951, 3.2.4)."""
    return size + size // 1000 + JOINT


def _heading(entry: Entry) -> int:
    """What a header takes, after as much padding as there may be."""
    plain = bytes(511) + header(entry)
    return (len(runs(plain)) if len(plain) <= FEW else _compressed(len(plain))) + JOINT


def split(files: Iterable[File], max_bytes: int, *, where: str = "") -> tuple[tuple[str, ...], ...]:
    """Paths of each part: every file goes into the first part that has room for it and its folders, largest first.

    PlanError names every file that is too big for any. The order of the files plays no part.
    """
    weights = {file.path: weigh(file) for file in files}
    above_all = {folder for path in weights for folder in install.parents(path)}
    folders = {folder: _heading(directory(folder)) for folder in above_all}
    parts: list[_Bin] = []
    too_big: list[str] = []
    for path in sorted(weights, key=lambda path: (-weights[path], path)):
        above = {folder: folders[folder] for folder in install.parents(path)}
        if ENDS + weights[path] + sum(above.values()) > max_bytes:
            too_big.append(path)
        elif not any(part.take(path, weights[path], above) for part in parts):
            parts.append(_Bin(max_bytes - ENDS))
            parts[-1].take(path, weights[path], above)
    if too_big:
        told = ", ".join(f"/{path} ({weights[path]} bytes compressed)" for path in too_big[:5])
        more = f" and {len(too_big) - 5} more" if len(too_big) > 5 else ""  # noqa: PLR2004  readable
        raise PlanError(f"no layer of at most {max_bytes} bytes can hold {told}{more}", where=where, remedy=REMEDY)
    return tuple(tuple(sorted(part.paths)) for part in parts)


class _Bin:
    """A part in the making."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._folders: set[str] = set()
        self.paths: list[str] = []

    def take(self, path: str, weight: int, above: Mapping[str, int]) -> bool:
        """Whether a file fits, with those of its folders that are not there yet; then it is in."""
        new = above.keys() - self._folders
        needed = weight + sum(above[folder] for folder in new)
        if needed > self._room:
            return False
        self._room -= needed
        self._folders |= new
        self.paths.append(path)
        return True


def held(part: Part | None, files: Mapping[str, File]) -> Sequence[str]:
    """The paths, of all that wheels write, that a part holds; none for a part that is not needed."""
    if part is None:
        return tuple(files)
    parts = split(files.values(), part.max_bytes)
    return parts[part.number - 1] if part.number <= len(parts) else ()


def check(specs: Iterable[WheelSpec], paths: Mapping[str, Path]) -> None:
    """PlanError if parts that were planned can't hold what is in their wheels, which are found by sha256 in `paths`."""
    planned: defaultdict[tuple[Pin, ...], list[Part]] = defaultdict(list)
    for spec in specs:
        if spec.part:
            planned[spec.pins].append(spec.part)
    for pins, parts in planned.items():
        with ExitStack() as stack:
            wheels = [stack.enter_context(members.opened(paths[pin.sha256])) for pin in pins]
            files = {file.path: file for wheel in wheels for file in install.install(wheel).files}
        where, max_bytes = ", ".join(pin.filename for pin in pins), parts[0].max_bytes
        needed, limit = len(split(files.values(), max_bytes, where=where)), max(part.number for part in parts)
        if needed > limit:
            what = f"{needed} layers of {max_bytes} bytes are needed, {limit} are planned"
            raise PlanError(what, where=where, remedy=REMEDY)
