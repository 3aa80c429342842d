"""What a matrix of the right form can still get wrong: names, versions, rows that clash."""

from __future__ import annotations

import re
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.version import Version

from torchkiln.errors import MatrixError
from torchkiln.matrix import entries, facts, reading
from torchkiln.matrix.document import FlavourEntry
from torchkiln.matrix.target import combinations, expand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from torchkiln.matrix.document import AcceleratorEntry, Document
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.target import Product, Release, Target

WITH, FOR = "with", "for"
COMPRESSED = ("gzip", "zstd")
ARCHES = ("x8664", "aarch64")
"""Words that ids and the names of images use."""


def of_sections(found: Document, known: Facts, folder: Path) -> Iterator[str]:
    """Of what is declared, each with its key path and the nearest legal value."""
    yield from _references(found)
    yield from _accelerators(found, known)
    yield from _names(found)
    yield from _flavours(found)
    yield from _releases(found, known)
    yield from _extras(found, folder)


def of_excludes(products: Sequence[Product]) -> Iterator[str]:
    """Of what products exclude."""
    for number, stated in enumerate(products):
        yield from _stale_excludes(number, stated)


def of_rows(products: Sequence[Product], targets: Sequence[Target]) -> Iterator[str]:
    """Of rows side by side."""
    yield from _clashes(targets)
    yield from _unlike_locks(products)


def _references(found: Document) -> Iterator[str]:
    """Names in `targets` that no section declares."""
    for number, entry in enumerate(found.targets):
        named: tuple[tuple[str, list[str], Iterable[str]], ...] = (
            ("releases", entry.releases, found.releases),
            ("accelerators", entry.accelerators, found.accelerators),
            ("gpus", entry.gpus, found.gpus),
            ("flavours", entry.flavours, found.flavours),
            ("bases", entry.bases, found.bases),
        )
        for section, names, legal in named:
            for position, name in enumerate(names):
                if name not in legal:
                    yield _unknown(("targets", number, section, position), name, legal)


def _accelerators(found: Document, known: Facts) -> Iterator[str]:
    """Variants for which no torch was ever built, and versions that contradict their name."""
    legal = facts.every_variant(known)
    for name, entry in found.accelerators.items():
        variant = entries.accelerator(name, entry).variant
        loc = ("accelerators", name)
        expected = _expected_name(entry)
        if (entry.kind == "cpu") is bool(entry.version):
            lack = "cpu has none: leave it out" if entry.version else f"is missing: of {entry.kind}, such as '12.4'"
            yield f"{reading.path((*loc, 'version'))}: {lack}"
        elif variant not in legal:
            yield f"{reading.path(loc)}: no torch is built for {variant!r}{reading.nearest(variant, legal)}"
        elif name != expected:
            yield f"{reading.path(loc)}: {entry.kind} {entry.version or ''} is called {expected!r}, not {name!r}"


def _expected_name(entry: AcceleratorEntry) -> str:
    prefix = {"cuda": "cu", "rocm": "rocm", "cpu": "cpu"}[entry.kind]
    return prefix + (entry.version or "").replace(".", "")


def _names(found: Document) -> Iterator[str]:
    """What would make two rows, or two readings of an id, alike; and which base ids leave out."""
    sections: tuple[tuple[str, Iterable[str]], ...] = (
        ("gpus", found.gpus),
        ("flavours", found.flavours),
        ("bases", found.bases),
    )
    seen = {WITH: "the word before additions", FOR: "the word before a publish target"}
    seen |= dict.fromkeys(ARCHES, "an architecture")
    for section, names in sections:
        for name in names:
            if name in seen:
                yield f"{section}.{name}: {name!r} is {seen[name]} already, and ids would be ambiguous"
            elif name.startswith(COMPRESSED):
                yield f"{section}.{name}: {name!r} would read like a compression, which ends names of images"
            seen[name] = f"one of {section}"
    defaults = [name for name, entry in found.bases.items() if entry.default]
    if len(defaults) != 1:
        yield f"bases: one of them is `default: true`, the one that ids leave out; here {', '.join(defaults) or 'none'}"


def _flavours(found: Document) -> Iterator[str]:
    """Accelerators that no section declares."""
    for name, entry in found.flavours.items():
        for accelerator in entry.accelerators:
            if accelerator not in found.accelerators:
                yield _unknown(("flavours", name, "accelerators", accelerator), accelerator, found.accelerators)
    for number, product in enumerate(found.targets):
        added = [name for name in product.flavours if found.flavours.get(name, FlavourEntry()).packages]
        fixed = [name for name in product.bases if name in found.bases and found.bases[name].kind != "debian"]
        if added and fixed:
            path = reading.path(("targets", number))
            yield f"{path}: flavour {added[0]} adds packages, and base {fixed[0]} takes none: it is no debian base"


def _releases(found: Document, known: Facts) -> Iterator[str]:
    """Names that say another version: `torch25`, or for a second patch of one minor `torch251`, `torch25old`."""
    minors = {_minor_name(row.torch) for row in known.releases}
    for name, entry in found.releases.items():
        expected = _minor_name(entry.torch)
        patch = f"{expected}{''.join(str(part) for part in Version(entry.torch).release[2:])}"
        another = re.fullmatch(rf"{expected}[a-z][a-z0-9]*", name) or (name == patch and name not in minors)
        if name != expected and not another:
            path = reading.path(("releases", name))
            yield f"{path}: torch {entry.torch} is called {expected!r}, not {name!r}; a second patch of it {patch!r}"


def _minor_name(torch: str) -> str:
    version = Version(torch)
    return f"torch{version.major}{version.minor}"


def _extras(found: Document, folder: Path) -> Iterator[str]:
    """Files of additions that cannot be used."""
    for number, entry in enumerate(found.targets):
        try:
            entries.additions(entry, folder)
        except MatrixError as error:
            loc = reading.path(("targets", number, "extra"))
            yield f"{loc}: {entry.extra!r}: {error.what}; {error.remedy}".removesuffix("; ")


def _unknown(loc: reading.Loc, name: str, legal: Iterable[str]) -> str:
    return f"{reading.path(loc)}: {name!r} is not declared{reading.nearest(name, legal)}"


def _stale_excludes(number: int, stated: Product) -> Iterator[str]:
    """Patterns that exclude nothing: most likely misspelt, and the row that was meant would be built."""
    made = combinations(stated)
    if not expand(stated):
        yield f"{reading.path(('targets', number, 'exclude'))}: excludes every row, so nothing would be built"
    for position, pattern in enumerate(stated.exclude):
        if not any(fnmatchcase(row.id, pattern) for row in made):
            loc = ("targets", number, "exclude", position)
            near = reading.nearest(pattern, [row.id for row in made])
            yield f"{reading.path(loc)}: {pattern!r} excludes no row of this product{near}"


def _clashes(targets: Sequence[Target]) -> Iterator[str]:
    """Rows of one name."""
    seen: set[str] = set()
    for target in targets:
        if target.id in seen:
            yield f"targets: two rows are called {target.id}; exclude one of them"
        seen.add(target.id)


def _unlike_locks(products: Sequence[Product]) -> Iterator[str]:
    """Locks that rows share which go without different ones of the trio; told once for each release and accelerator."""
    asked: defaultdict[str, dict[Release, tuple[str, int]]] = defaultdict(dict)
    for number, stated in enumerate(products):
        for row in expand(stated):
            asked[row.lock_name].setdefault(row.release, (row.id, number))
    for name, rows in asked.items():
        (one, first), *others = rows.values()
        for other, second in others:
            places = " and ".join(reading.path(("targets", number, "without")) for number in (first, second))
            yield f"{places}: {one} and {other} share the lock {name}, and so their wheels: state the same `without`"
