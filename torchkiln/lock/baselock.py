"""What a base is expected to hold ↔ text: the packages of a userland, or the layers of an image that others made."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import ROW, LockError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, PLAIN_TYPE, ZSTD_TYPE, Descriptor, Layer, canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

PACKAGE = re.compile(r"([a-z0-9][a-z0-9+.-]+(?::[a-z0-9-]+)?)=([A-Za-z0-9.+:~-]+)")
"""Debian policy 5.6.1 and 5.6.12: package names, with an architecture where dpkg needs one, and versions."""
LAYER = re.compile(
    r"(?P<digest>sha256:[0-9a-f]{64}) (?P<diff_id>sha256:[0-9a-f]{64}) (?P<form>tar|tar\+gzip|tar\+zstd)"
    r" (?P<size>\d{1,15}) (?P<unpacked>\d{1,15})"
)
HEADING = re.compile(r"# (source|config|python|inputs): (\S+)")
ASKED = re.compile(r"# asks: ([a-z]+)(?: (.+))?")
COMMAND = f"./inv lock {ROW} --base"
"""What writes a base lock, where the row is not known."""
_FORMS = {"tar": PLAIN_TYPE, "tar+gzip": LAYER_TYPE, "tar+zstd": ZSTD_TYPE}
Asks = tuple[tuple[str, str], ...]
"""What was asked for: (word, value), for example (`suite`, `bookworm`); lists are separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseLock:
    """The packages of a userland that we assemble, or the layers of an image that we pull or have built."""

    packages: tuple[tuple[str, str], ...] = ()
    """(name, version), sorted by name."""
    layers: tuple[Layer, ...] = ()
    """Lowest first; of foreign images only."""
    source: str = ""
    """What they were made from: the image by digest, or the digest of the Dockerfile's folder."""
    config: str = ""
    """Digest of the image's config."""
    version: str = ""
    """Version of the image's Python, as its headers say."""
    asked: Asks = ()
    """What mmdebstrap was asked for, so that a stale lock can say what changed; of userlands only."""
    inputs: str = ""
    """Checksum of that: `sha256:` and hex; empty where it is not stated."""
    digest: str
    """sha256 of the lock file but for what was asked, so that what is held names it: `sha256:` and hex."""

    @property
    def python(self) -> str:
        """Upstream version of the interpreter, for example `3.11.2`; empty if the base lists none."""
        for name, version in self.packages:
            if name.startswith("libpython3.") and name.endswith("-minimal"):
                return version.split(":")[-1].split("-")[0]
        return self.version


def make(packages: Iterable[tuple[str, str]], asked: Asks = ()) -> BaseLock:
    """The lock of a userland, with its checksums."""
    ordered, inputs = tuple(sorted(packages)), checksum(asked) if asked else ""
    return _summed(BaseLock(packages=ordered, asked=asked, inputs=inputs, digest=""))


def checksum(asked: Asks) -> str:
    """Names what was asked for: `sha256:` and hex."""
    return digests.of_bytes(canonical([list(pair) for pair in asked]))


def of_image(layers: Sequence[Layer], *, source: str, config: str, python: str) -> BaseLock:
    """The lock of an image that others made, with its checksum."""
    return _summed(BaseLock(layers=tuple(layers), source=source, config=config, version=python, digest=""))


def _summed(lock: BaseLock) -> BaseLock:
    return parse(render(lock))


def render(lock: BaseLock) -> str:
    """The base lock file; parse() gives the same lock back."""
    return "".join(f"{line}\n" for line in _lines(lock))


def _lines(lock: BaseLock) -> Iterator[str]:
    if not lock.layers:
        yield "# One Debian package a line, as installed in the base; written by ./inv lock."
        yield from _asking(lock)
        yield from (f"{name}={version}" for name, version in lock.packages)
        return
    yield "# One layer a line, lowest first: digest, diff_id, form, bytes as it lies and unpacked; by ./inv lock."
    yield from (f"# {word}: {getattr(lock, field)}" for word, field in _HEADINGS.items())
    forms = {media_type: form for form, media_type in _FORMS.items()}
    for layer in lock.layers:
        blob = layer.descriptor
        yield f"{blob.digest} {layer.diff_id} {forms[blob.media_type]} {blob.size} {layer.unpacked_size}"


def _asking(lock: BaseLock) -> Iterator[str]:
    if lock.inputs:
        yield f"# inputs: {lock.inputs}"
    yield from (f"# asks: {word} {value}".rstrip() for word, value in lock.asked)


_HEADINGS = {"source": "source", "config": "config", "python": "version"}
"""Words of the file, and the fields they stand for."""


def parse(text: str, *, where: str = "base lock", remedy: str = COMMAND) -> BaseLock:
    """Read a base lock file; LockError lists every line that is none."""
    stated = dict(HEADING.findall(text))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    layers = [_layer(match) for line in lines if (match := LAYER.fullmatch(line))]
    packages = [(match[1], match[2]) for line in lines if (match := PACKAGE.fullmatch(line))]
    wrong = [line for line in lines if not LAYER.fullmatch(line) and not PACKAGE.fullmatch(line)]
    problems = [f"{line[:120]!r} is neither name=version nor a layer" for line in wrong]
    problems += [
        f"{name} is listed twice" for name, count in Counter(name for name, _ in packages).items() if count > 1
    ]
    problems += ["packages and layers are mixed"] if packages and layers else []
    problems += [f"there is no line '# {word}: …'" for word in _HEADINGS if layers and word not in stated]
    if problems:
        raise LockError("; ".join(problems), where=where, remedy=f"git restore the file, or {remedy}")
    return BaseLock(
        packages=tuple(sorted(packages)),
        layers=tuple(layers),
        asked=tuple((word, value) for word, value in ASKED.findall(text)),
        inputs=stated.get("inputs", ""),
        digest=digests.of_bytes(_held(text).encode()),
        **{field: stated.get(word, "") for word, field in _HEADINGS.items()},
    )


def _held(text: str) -> str:
    """A lock file without what was asked: two that hold the same are the same base layer."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("# inputs:", "# asks:")))


def _layer(found: re.Match[str]) -> Layer:
    blob = Descriptor(media_type=_FORMS[found["form"]], digest=digests.parse(found["digest"]), size=int(found["size"]))
    return Layer(descriptor=blob, diff_id=digests.parse(found["diff_id"]), unpacked_size=int(found["unpacked"]))


def read(path: Path, *, remedy: str = COMMAND) -> BaseLock:
    """The base lock in a file; LockError if there is none."""
    try:
        return parse(path.read_text(encoding="utf-8"), where=str(path), remedy=remedy)
    except FileNotFoundError as error:
        what = f"nobody has locked what the base holds: there is no {path.name}"
        raise LockError(what, where=str(path), remedy=remedy) from error
    except (OSError, UnicodeDecodeError) as error:
        again = f"git restore the file and make it readable, or write it anew: {remedy}"
        raise LockError(f"the lock cannot be read: {error}", where=str(path), remedy=again) from error


def difference(expected: BaseLock, found: BaseLock) -> tuple[str, ...]:
    """What is not as expected, one line each: `name 1 → 2`, `+ name 2`, `- name 1`, of packages or layers."""
    before, after = _named(expected), _named(found)
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            lines.append(f"+ {name} {after[name]}")
        elif name not in after:
            lines.append(f"- {name} {before[name]}")
        elif before[name] != after[name]:
            lines.append(f"{name} {before[name]} → {after[name]}")
    return tuple(lines)


def _named(lock: BaseLock) -> dict[str, str]:
    layers = {f"layer {number}": layer.diff_id[:19] for number, layer in enumerate(lock.layers)}
    return dict(lock.packages) | layers | ({"python": lock.version} if lock.version else {})
