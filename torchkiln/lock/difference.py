"""Two lock files → what changed between them, for people and for pull requests; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.lock.sections import LockFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A package that is pinned otherwise than before."""

    name: str
    before: Pin | None
    after: Pin | None

    @property
    def kind(self) -> str:
        """`added`, `removed`, `changed` to another version, or `replaced` by another file of the same version."""
        if self.before is None or self.after is None:
            return "removed" if self.before else "added"
        return "replaced" if self.before.version == self.after.version else "changed"

    @property
    def size(self) -> int | None:
        """Bytes more than before; None where a size is unknown."""
        sizes = [0 if pin is None else pin.size for pin in (self.after, self.before)]
        return None if sizes[0] is None or sizes[1] is None else sizes[0] - sizes[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What changed in one part of a lock file."""

    file: str
    section: str
    """Empty for what rows share."""
    changes: tuple[Change, ...]
    created: bool = False
    """Whether the part was not there before."""

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.file}, {self.section}" if self.section else self.file


def difference(file: str, before: LockFile, after: LockFile) -> tuple[Difference, ...]:
    """What changed, part by part; a part with no change in its pins is there with none."""
    old, new = before.parts, after.parts
    names = dict.fromkeys((*new, *old))
    return tuple(
        Difference(file=file, section=name, changes=_changes(old.get(name), new.get(name)), created=name not in old)
        for name in names
    )


def _changes(old: Lock | None, new: Lock | None) -> tuple[Change, ...]:
    before, after = ({pin.name: pin for pin in lock.pins} if lock else {} for lock in (old, new))
    return tuple(
        Change(name=name, before=before.get(name), after=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def plain(found: Sequence[Difference]) -> str:
    """One line a package below one line a part."""
    return "\n".join(line for part in found for line in (f"{part.title}: {_summary(part)}", *map(_line, part.changes)))


def _line(change: Change) -> str:
    return f"  {change.kind:8} {change.name} {_versions(change)} ({_bytes(change.size)})"


def _versions(change: Change) -> str:
    versions = [pin.version for pin in (change.before, change.after) if pin]
    if change.kind == "replaced" and change.before and change.after:
        return f"{versions[0]}: {change.before.filename} -> {change.after.filename}"
    return " -> ".join(versions)


def _summary(part: Difference) -> str:
    if not part.changes:
        return "created, with no wheel of its own" if part.created else "nothing changed"
    kinds = [change.kind for change in part.changes]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    return ", ".join([*counts, _bytes(_total(part))])


def _total(part: Difference) -> int | None:
    sizes = [change.size for change in part.changes]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _bytes(size: int | None) -> str:
    return "size unknown" if size is None else f"{round(size / 1e6, 1) + 0.0:+.1f} MB"  # never -0.0


def markdown(found: Sequence[Difference]) -> str:
    """A table for each part that changed, for a pull request."""
    blocks = [_block(part) for part in found if part.changes or part.created]
    same = [part.title for part in found if not (part.changes or part.created)]
    rest = [f"Nothing changed in {', '.join(f'`{title}`' for title in same)}."] if same else []
    return "\n\n".join([*blocks, *rest])


def _block(part: Difference) -> str:
    heading = f"### `{part.title}`\n\n{_summary(part)}\n"
    if not part.changes:
        return heading.rstrip()
    return "\n".join([heading, "| package | | before | after | size |", "|---|---|---|---|---:|", *_rows(part)])


def _rows(part: Difference) -> Iterator[str]:
    for change in part.changes:
        before, after = (_cell(pin, change) for pin in (change.before, change.after))
        yield f"| {change.name} | {change.kind} | {before} | {after} | {_bytes(change.size)} |"


def _cell(pin: Pin | None, change: Change) -> str:
    if pin is None:
        return ""
    return f"{pin.version} (`{pin.filename}`)" if change.kind == "replaced" else pin.version
