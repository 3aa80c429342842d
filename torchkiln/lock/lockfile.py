"""Lock ↔ requirements text, headed by its inputs' checksum; how parts make up a lock file is in sections.py.

A lock is a requirements file that pip and uv can install, with exactly one hash per line, so the very file is
pinned and not a choice among platforms. No download address is ever written: it would be one machine's own mirror.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchkiln.errors import LockError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PIN = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[A-Za-z0-9.!+]+) --hash=sha256:(?P<sha256>[0-9a-f]{64})"
    r" # (?P<filename>[A-Za-z0-9._+!-]+\.whl), (?:(?P<size>\d{1,15}) bytes|size unknown)"
)
HEADLINE = "# One wheel a line, one file a wheel; written by ./inv lock, readable by pip and uv."
HEADING = re.compile(r"# (inputs|requires|python|platform|index|constraints|resolver): (.+)")
SOURCE = re.compile(r"# hash of (?P<name>[a-z0-9-]+): (?P<text>.+)")
SECTION = re.compile(r"# section: (?P<name>[a-z0-9-]+)")
UNCONFIRMED = "a single source, unconfirmed"
"""How the source of a hash reads that nobody has confirmed yet."""
BIGGEST = 1 << 33
"""Bytes; no wheel of the trio has as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One wheel: exactly this file."""

    name: str
    """Normalised (PEP 503)."""
    version: str
    """As in the lock; with a local suffix only if the index gives one."""
    sha256: str
    """64 hex digits."""
    filename: str
    size: int | None
    """Bytes; None where nobody states it, as for a wheel of which only the hash is known."""

    @property
    def weight(self) -> int:
        """Bytes, to compare pins by; a wheel of unknown size counts as one of the biggest."""
        return BIGGEST if self.size is None else self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the resolver is asked; a lock made from other inputs is stale."""

    requirements: tuple[str, ...] = ()
    """PEP 508, sorted."""
    python: str = ""
    """Minor, for example `3.11`."""
    platform: str = ""
    """Machine and glibc, for example `x86_64 glibc 2.36`."""
    index: str = ""
    """`default`, or the folder of the PyTorch index, for example `cu118`."""

    constraints: str = ""
    """Checksum of the pins that this was resolved on top of, if there are any."""

    @property
    def checksum(self) -> str:
        """`sha256:` and hex."""
        document: list[object] = [list(self.requirements), self.python, self.platform, self.index]
        return digests.of_bytes(canonical([*document, self.constraints] if self.constraints else document))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Wheels that were chosen together, or all wheels of a row; sorted by name."""

    inputs: str
    """Checksum of what the resolver was asked: `sha256:` and hex."""
    pins: tuple[Pin, ...]
    digest: str
    """sha256 of the text, which for a row is exactly what it uses of its files: `sha256:` and hex."""
    asked: Inputs = field(default_factory=Inputs)
    """The inputs in words, so that a stale lock can say what changed."""
    resolver: str = ""
    """Name and version of what chose the versions."""
    sources: tuple[tuple[str, str], ...] = ()
    """(name, whose word the hash is) where it isn't simply the word of the index that was asked."""
    parts: tuple[tuple[Pin, ...], ...] = ()
    """Of a row with additions: the pins that rows share, then those of each addition; else empty."""

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """The packages whose hash has a single source."""
        return tuple(name for name, text in self.sources if UNCONFIRMED in text)


def make(asked: Inputs, pins: Iterable[Pin], resolver: str, sources: Iterable[tuple[str, str]] = ()) -> Lock:
    """A lock with its two checksums."""
    ordered = tuple(sorted(pins, key=lambda pin: pin.name))
    lock = Lock(
        inputs=asked.checksum, pins=ordered, digest="", asked=asked, resolver=resolver, sources=tuple(sorted(sources))
    )
    return replace(lock, digest=digests.of_bytes(render(lock).encode()))


def render(lock: Lock, section: str = "") -> str:
    """The text of a lock, or of a section of a lock file; parse() gives the same lock back."""
    return "".join(f"{line}\n" for line in _lines(lock, section))


def _lines(lock: Lock, section: str) -> Iterator[str]:
    yield f"# section: {section}" if section else HEADLINE
    yield f"# inputs: {lock.inputs}"
    yield from (f"# requires: {requirement}" for requirement in lock.asked.requirements)
    for word in ("python", "platform", "index", "constraints"):
        if value := getattr(lock.asked, word):
            yield f"# {word}: {value}"
    if lock.resolver:
        yield f"# resolver: {lock.resolver}"
    yield from (f"# hash of {name}: {text}" for name, text in lock.sources)
    for pin in lock.pins:
        size = "size unknown" if pin.size is None else f"{pin.size} bytes"
        yield f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256} # {pin.filename}, {size}"


def parse(text: str, *, where: str = "lock") -> Lock:
    """Read a lock, or one section of a lock file; LockError lists every line that is none."""
    headings: list[tuple[str, str]] = []
    sources: list[tuple[str, str]] = []
    pins: list[Pin] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if found := PIN.fullmatch(line):
            pins.append(_pin(found))
        elif heading := HEADING.fullmatch(line):
            headings.append((heading[1], heading[2]))
        elif source := SOURCE.fullmatch(line):
            sources.append((source["name"], source["text"]))
        elif SECTION.fullmatch(line) and number > 1:
            problems.append(f"line {number} begins another section")
        elif line.strip() and not line.startswith("#"):
            problems.append(f"line {number} is not a pin: {line[:120]!r}")
    problems += [f"{name} is pinned twice" for name in _repeated(pin.name for pin in pins)]
    stated = dict(headings)
    problems += [] if "inputs" in stated else ["there is no line '# inputs: sha256:…'"]
    if problems:
        raise LockError("; ".join(problems), where=where, remedy="git restore the file, or write it anew: ./inv lock")
    asked = Inputs(
        requirements=tuple(value for word, value in headings if word == "requires"),
        **{word: stated.get(word, "") for word in ("python", "platform", "index", "constraints")},
    )
    lock = make(asked, pins, stated.get("resolver", ""), sources)
    stale = replace(lock, inputs=stated["inputs"])
    return replace(stale, digest=digests.of_bytes(render(stale).encode()))


def _pin(found: re.Match[str]) -> Pin:
    return Pin(
        name=found["name"],
        version=found["version"],
        sha256=found["sha256"],
        filename=found["filename"],
        size=int(found["size"]) if found["size"] else None,
    )


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def text_of(path: Path, remedy: str) -> str:
    """What a lock file says; LockError if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise LockError("there is no lock", where=str(path), remedy=remedy) from error
    except (OSError, UnicodeDecodeError) as error:
        again = f"git restore the file and make it readable, or write it anew: {remedy}"
        raise LockError(f"the lock cannot be read: {error}", where=str(path), remedy=again) from error
