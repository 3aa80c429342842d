"""Wheels that are too big for one layer → which of their files each part holds, by weight; pure but for `check`.

What a file weighs is known from the wheel's directory, so that a split is known, or refused, before anything is made.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from functools import cache
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


def split(files: Iterable[File], max_bytes: int) -> tuple[tuple[str, ...], ...]:
    """Paths of each part: every file goes into the first part that has room for it and its folders, largest first.

    PlanError names every file that is too big for any. The order of the files plays no part.
    """
    weights = {file.path: weigh(file) for file in files}
    if big := _too_big(weights, max_bytes):
        raise _refusal(big, weights, max_bytes)
    return _split(weights, max_bytes)


def _split(weights: Mapping[str, int], max_bytes: int) -> tuple[tuple[str, ...], ...]:
    parts: list[_Bin] = []
    for path in sorted(weights, key=lambda path: (-weights[path], path)):
        above = {folder: _folder(folder) for folder in install.parents(path)}
        if not any(part.take(path, weights[path], above) for part in parts):
            parts.append(_Bin(max_bytes - ENDS))
            parts[-1].take(path, weights[path], above)
    return tuple(tuple(sorted(part.paths)) for part in parts)


@cache
def _folder(path: str) -> int:
    """What the header of a folder takes."""
    return _heading(directory(path))


def _too_big(weights: Mapping[str, int], max_bytes: int) -> dict[str, int]:
    """Files that fit into no layer of a size, and the size of the layer that each needs for itself."""
    alone = {path: ENDS + weights[path] + sum(map(_folder, install.parents(path))) for path in weights}
    return {path: size for path, size in alone.items() if size > max_bytes}


def _refusal(big: Mapping[str, int], weights: Mapping[str, int], max_bytes: int, where: str = "") -> PlanError:
    """Which files are too big, the largest first, and the least that would do for all of them."""
    paths = sorted(big, key=lambda path: (-big[path], path))
    told = ", ".join(f"/{path} ({weights[path]} bytes compressed)" for path in paths[:5])
    more = f" and {len(big) - 5} more" if len(big) > 5 else ""  # noqa: PLR2004  readable
    remedy = f"max_layer_bytes of at least {max(big.values())}, if the base fits too; or none"
    return PlanError(f"no layer of at most {max_bytes} bytes can hold {told}{more}", where=where, remedy=remedy)


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
    """PlanError if parts that were planned can't hold what is in their wheels, which are found by sha256 in `paths`.

    It names all files that are too big, and the wheels that have them.
    """
    planned: defaultdict[tuple[Pin, ...], list[Part]] = defaultdict(list)
    for spec in specs:
        if spec.part:
            planned[spec.pins].append(spec.part)
    found = {pins: _weighed(pins, paths) for pins in planned}
    _hold_files(found, {part.max_bytes for parts in planned.values() for part in parts})
    for pins, parts in planned.items():
        max_bytes, limit = parts[0].max_bytes, max(part.number for part in parts)
        needed = len(_split({path: weight for path, (weight, _) in found[pins].items()}, max_bytes))
        if needed > limit:
            what = f"{needed} layers of {max_bytes} bytes are needed, {limit} are planned"
            raise PlanError(what, where=", ".join(pin.filename for pin in pins), remedy=REMEDY)


def _weighed(pins: Sequence[Pin], paths: Mapping[str, Path]) -> dict[str, tuple[int, str]]:
    """Files that wheels write, by path: what each weighs, and which wheel has it."""
    with ExitStack() as stack:
        wheels = {pin.filename: stack.enter_context(members.opened(paths[pin.sha256])) for pin in pins}
        return {file.path: (weigh(file), name) for name, one in wheels.items() for file in install.install(one).files}


def _hold_files(found: Mapping[tuple[Pin, ...], Mapping[str, tuple[int, str]]], limits: Iterable[int]) -> None:
    """PlanError for files that are too big for any layer; a plan has one limit."""
    files = {path: said for group in found.values() for path, said in group.items()}
    weights = {path: weight for path, (weight, _) in files.items()}
    for max_bytes in limits:
        if big := _too_big(weights, max_bytes):
            raise _refusal(big, weights, max_bytes, ", ".join(sorted({files[path][1] for path in big})))
