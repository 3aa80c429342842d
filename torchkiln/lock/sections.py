"""Lock file ↔ its parts: what rows share, then a section for each flavour that adds wheels.

A section is resolved on top of the pins above it and holds only what it adds, so adding one changes nothing for the
rows that do without. What a row uses is its own lock, with a digest of exactly that. The locks of a user's additions
have the same form, without a part that rows share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchkiln.errors import LockError
from torchkiln.lock import lockfile
from torchkiln.lock.lockfile import SECTION, Lock
from torchkiln.oci import digest as digests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torchkiln.lock.lockfile import Pin


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """One file of images/locks/, or one beside a user's requirements."""

    common: Lock | None = None
    """What rows share; None in the file of a user's additions."""
    sections: Mapping[str, Lock] = field(default_factory=dict)
    """What each flavour adds, by its name."""

    @property
    def parts(self) -> dict[str, Lock]:
        """Every part by its name; the one that rows share has none."""
        common = {"": self.common} if self.common else {}
        return common | {name: self.sections[name] for name in sorted(self.sections)}


def render(file: LockFile) -> str:
    """The file; parse() gives the same parts back."""
    return text(file.parts)


def text(parts: Mapping[str, Lock]) -> str:
    """Parts one after another."""
    return "\n".join(lockfile.render(lock, name) for name, lock in parts.items())


def parse(content: str, *, where: str = "lock") -> LockFile:
    """Read a lock file; LockError lists what is wrong in any part."""
    parts: dict[str, Lock] = {}
    problems: list[str] = []
    for name, chunk in _chunks(content):
        try:
            if name in parts:
                problems.append(f"section {name} is there twice")
            parts[name] = lockfile.parse(chunk, where=where)
        except LockError as error:
            problems.append(f"section {name}: {error.what}" if name else error.what)
    common = parts.pop("", None)
    problems += [text for name, lock in parts.items() if common for text in _repeated(name, lock, common.pins)]
    if problems:
        raise LockError("; ".join(problems), where=where, remedy="git restore the file, or write it anew: ./inv lock")
    return LockFile(common=common, sections=parts)


def _chunks(content: str) -> Iterator[tuple[str, str]]:
    """The text of each part, with its name; a blank line before a section belongs to neither."""
    for chunk in re.split(r"\n(?=# section: )", content):
        found = SECTION.match(chunk)
        if found or chunk.strip():
            yield found["name"] if found else "", chunk


def _repeated(section: str, lock: Lock, above: Sequence[Pin]) -> Iterator[str]:
    known = {pin.name for pin in above}
    yield from (
        f"section {section} pins {pin.name}, which is pinned above it" for pin in lock.pins if pin.name in known
    )


def read(path: Path, *, remedy: str = "./inv lock") -> LockFile:
    """The lock file at a path; LockError if there is none."""
    return parse(lockfile.text_of(path, remedy), where=str(path))


def joined(parts: Mapping[str, Lock]) -> Lock:
    """The lock of a row from the parts that it uses, by name, the shared one first; one part is the lock itself.

    The digest covers text() of exactly these; other sections of their files do not matter.
    """
    first, *added = parts.values()
    if not added:
        return first
    whole = lockfile.make(
        replace(first.asked, requirements=tuple(text for lock in parts.values() for text in lock.asked.requirements)),
        [pin for lock in parts.values() for pin in lock.pins],
        first.resolver,
        [source for lock in parts.values() for source in lock.sources],
    )
    digest = digests.of_bytes(text(parts).encode())
    return replace(whole, digest=digest, parts=tuple(lock.pins for lock in parts.values()))
