"""A lock for a row on the PyTorch index without asking that index: its files from the facts, the rest from PyPI.

The facts hold the hashes that locks of others state and what builds for a variant ask for. Each such file is stood in
for by an empty wheel with that metadata, in a folder that takes the index's place, so uv chooses as it always does.
A wrong fact cannot get into an image: the fetched file is held against its hash, and its own metadata against the lock.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from torchkiln.errors import LockError
from torchkiln.lock import fit, metadata, resolve, tags
from torchkiln.lock.index import BUILT, ask
from torchkiln.lock.lockfile import UNCONFIRMED, Pin
from torchkiln.matrix import facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packaging.version import Version

    from torchkiln.lock.index import Offer
    from torchkiln.lock.lockfile import Inputs
    from torchkiln.matrix.factfile import Facts, NeedFact, WheelFact
    from torchkiln.matrix.target import Target

ACCELERATED = re.compile(r"nvidia-.+|cuda-.+|triton|triton-.+|pytorch-triton.*")
"""Packages that torch asks for because of its accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a lock made from facts pins, and whose word each hash of the PyTorch index is."""

    pins: tuple[Pin, ...]
    sources: Mapping[str, str]
    """By the name of the package, for the heading of the lock."""


def lockable(target: Target, known: Facts) -> tuple[str, ...]:
    """What is missing for a lock of a row without the PyTorch index, in words; empty if nothing is."""
    if target.accelerator.by_default:
        return ()
    torch, variant = target.release.torch, target.accelerator.variant
    lacking = [] if facts.needs(known, torch, variant) else [f"what torch {torch}+{variant} asks for"]
    wanted = _wanted(target, known)
    return (
        *lacking,
        *(f"the hash of {text} for {_where(target)}" for text in wanted if not _file(text, target, known)),
    )


def _where(target: Target) -> str:
    return f"Python {target.base.python}, {target.arch}, glibc {target.wheel_glibc}"


def wheels(
    asked: Inputs,
    target: Target,
    environment: Mapping[str, str],
    known: Facts,
    *,
    constraints: Sequence[str] = (),
    preferences: Mapping[str, str] | None = None,
) -> Known:
    """As resolve.wheels, with the PyTorch index as the facts know it; LockError names what they lack."""
    if missing := lockable(target, known):
        what = f"the facts do not hold all that {target.id} needs of the PyTorch index: {'; '.join(missing)}"
        remedy = f"where that index can be reached: ./inv lock --target {target.id}"
        raise LockError(what, where="torchkiln/matrix/facts.yaml", remedy=remedy)
    with tempfile.TemporaryDirectory(prefix="torchkiln-known-") as folder:
        links = list(_stand_ins(Path(folder), target, known, environment))
        offers = resolve.choose(
            asked, target, environment, constraints=constraints, preferences=preferences, links=links
        )
    files = {row.file: row for row in known.wheels}
    pins = tuple(_pin(offer, files.get(offer.filename), environment) for offer in offers)
    needed = facts.needs(known, target.release.torch, target.accelerator.variant)
    stated = [(pin.name, files[pin.filename]) for pin in pins if pin.filename in files]
    return Known(pins=pins, sources={name: _source(name, row, needed) for name, row in stated if needed})


def _pin(offer: Offer, fact: WheelFact | None, environment: Mapping[str, str]) -> Pin:
    if fact is None:
        return resolve.pin(offer, environment)
    return Pin(
        name=offer.name, version=offer.version, sha256=fact.sha256, filename=offer.filename, size=fact.size or None
    )


def _source(name: str, fact: WheelFact, needed: NeedFact) -> str:
    """Whose word a hash is, and what the file asks for, for the heading of a lock."""
    said = UNCONFIRMED if len(fact.by) < 2 else f"{len(fact.by)} sources that agree"  # noqa: PLR2004  two confirm
    asks = f"facts.yaml says (confidence: {needed.confidence or 'unknown'})" if name == "torch" else "PyPI's build does"
    return f"facts.yaml, {said}: {', '.join(fact.by)}; taken to ask for what {asks}, checked at build"


def _wanted(target: Target, known: Facts) -> tuple[str, ...]:
    """What a row takes from the PyTorch index, as requirements."""
    trio = [text for text in fit.asked(target).requirements if resolve.named([text]) <= set(BUILT)]
    needed = facts.needs(known, target.release.torch, target.accelerator.variant)
    added = [text for text in (needed.requires if needed else ()) if resolve.named([text]) <= set(BUILT)]
    return (*trio, *(text.partition(";")[0] for text in added if _applies(text, target)))


def _applies(text: str, target: Target) -> bool:
    marker = Requirement(text).marker
    return marker is None or marker.evaluate({"python_version": target.base.python})


def _file(text: str, target: Target, known: Facts) -> WheelFact | None:
    """The best file for a platform among those the facts know."""
    supported = tags.supported(target.base.python, target.arch, target.wheel_glibc)
    fitting = [row for row in known.wheels if resolve.meets(row.file, Requirement(text))]
    ranked = [(place, row) for row in fitting if (place := tags.rank(row.file, supported)) is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _stand_ins(folder: Path, target: Target, known: Facts, environment: Mapping[str, str]) -> Iterator[Path]:
    """A wheel without content for each file of the PyTorch index, which asks for what that file is known to ask."""
    asked = replace(fit.asked(target), index="default")
    needed = facts.needs(known, target.release.torch, target.accelerator.variant)
    for row in (_file(text, target, known) for text in _wanted(target, known)):
        if row is None or needed is None:
            continue  # `lockable` named them
        name, version, _, _ = parse_wheel_filename(row.file)
        own = needed.requires if name == "torch" else ()
        path = folder / row.file
        _write(path, name, version, [*_common(name, version, asked, environment), *own])
        yield path


def _common(name: str, version: Version, asked: Inputs, environment: Mapping[str, str]) -> Iterator[str]:
    """What every build of a version asks for, read from the one on the default index (PEP 658)."""
    there = "triton" if "triton" in name else name
    offers = ask(asked, [f"{there}=={version.public}"], environment, (), dependencies=False)
    for text in metadata.of(offers[0], environment).requires_dist or ():
        if not ACCELERATED.fullmatch(canonicalize_name(text.name)):
            yield str(text)


def _write(path: Path, name: str, version: Version, requires: Sequence[str]) -> None:
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", "".join(f"{line}\n" for line in lines))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr(f"{info}/RECORD", "")
