"""matrix.yaml → Matrix: strict at the edge, frozen values inside; every problem is told at once."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from torchkiln.errors import MatrixError
from torchkiln.matrix import extra, facts, reading
from torchkiln.matrix.document import FlavourEntry
from torchkiln.matrix.publishing import PublishTarget
from torchkiln.matrix.target import Accelerator, Base, Flavour, Gpu, Product, Release, Target, combinations, expand
from torchkiln.oci import compression

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torchkiln.matrix.document import (
        AcceleratorEntry,
        BaseEntry,
        Document,
        GpuEntry,
        ProductEntry,
        PublishEntry,
        ReleaseEntry,
    )
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.forms import Threshold
    from torchkiln.matrix.target import Extra

WITH, FOR = "with", "for"
COMPRESSED = ("gzip", "zstd")
ARCHES = ("x8664", "aarch64")
"""Words that ids and the names of images use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The family: its parts by name, and every row."""

    bases: Mapping[str, Base]
    releases: Mapping[str, Release]
    accelerators: Mapping[str, Accelerator]
    """As stated; a target's own is completed from the facts for its release."""
    gpus: Mapping[str, Gpu]
    flavours: Mapping[str, Mapping[str, Flavour]]
    """As each is for every accelerator."""
    run_options: Mapping[str, tuple[str, ...]]
    """Of each accelerator; a target's GPU has them beside its own."""
    products: tuple[Product, ...]
    """As stated, with what each excludes."""
    targets: tuple[Target, ...]
    publish_targets: Mapping[str, PublishTarget]
    """What `--for` names."""


def load(path: Path, known: Facts | None = None) -> Matrix:
    """Read the matrix; MatrixError lists every problem with its key path and the nearest legal value."""
    try:
        data = path.read_bytes()
    except OSError as error:
        remedy = "git restore matrix.yaml" if isinstance(error, FileNotFoundError) else "make it a readable file"
        raise MatrixError(f"the matrix cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
    found, problems = reading.parse(data)
    known = known or facts.read()
    if found:
        problems = [*_references(found), *_accelerators(found, known), *_names(found), *_flavours(found)]
        problems += [*_releases(found, known), *_extras(found, path.parent)]
    if found is None or problems:
        raise _error(problems, path)
    matrix = _matrix(found, known, path.parent)
    if problems := [*_clashes(matrix.targets), *_unlike_locks(matrix.products)]:
        raise _error(problems, path)
    return matrix


def _error(problems: list[str], path: Path) -> MatrixError:
    count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
    lines = "".join(f"\n  {problem}" for problem in problems)
    return MatrixError(f"the matrix has {count}:{lines}", where=str(path), remedy="edit the file, then ./inv matrix")


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


def _extras(found: Document, folder: Path) -> Iterator[str]:
    """Files of additions that cannot be used."""
    for number, entry in enumerate(found.targets):
        try:
            _extra(entry, folder)
        except MatrixError as error:
            loc = reading.path(("targets", number, "extra"))
            yield f"{loc}: {entry.extra!r}: {error.what}; {error.remedy}".removesuffix("; ")


def _extra(entry: ProductEntry, folder: Path) -> Extra | None:
    return extra.read(folder / entry.extra) if entry.extra else None


def _unknown(loc: reading.Loc, name: str, legal: Iterable[str]) -> str:
    return f"{reading.path(loc)}: {name!r} is not declared{reading.nearest(name, legal)}"


def _accelerators(found: Document, known: Facts) -> Iterator[str]:
    """Variants for which no torch was ever built, and versions that contradict their name."""
    legal = facts.every_variant(known)
    for name, entry in found.accelerators.items():
        variant = _accelerator(name, entry).variant
        loc = ("accelerators", name)
        expected = _expected_name(entry)
        if (entry.kind == "cpu") is bool(entry.version):
            lack = "cpu has none: leave it out" if entry.version else f"is missing: of {entry.kind}, such as '12.4'"
            yield f"{reading.path((*loc, 'version'))}: {lack}"
        elif variant not in legal:
            yield f"{reading.path(loc)}: no torch is built for {variant!r}{reading.nearest(variant, legal)}"
        elif name != expected:
            yield f"{reading.path(loc)}: {entry.kind} {entry.version or ''} is called {expected!r}, not {name!r}"


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


def _expected_name(entry: AcceleratorEntry) -> str:
    prefix = {"cuda": "cu", "rocm": "rocm", "cpu": "cpu"}[entry.kind]
    return prefix + (entry.version or "").replace(".", "")


def _accelerator(name: str, entry: AcceleratorEntry) -> Accelerator:
    return Accelerator(id=name, kind=entry.kind, version=entry.version or "")


def _base(name: str, entry: BaseEntry) -> Base:
    stated: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry}
    return Base(id=name, **stated)


def _release(name: str, entry: ReleaseEntry) -> Release:
    return Release(
        id=name,
        torch=entry.torch,
        torchvision=entry.torchvision or "",
        torchaudio=entry.torchaudio or "",
        companions=tuple(entry.companions),
    )


def _gpu(name: str, entry: GpuEntry, thresholds: Mapping[Threshold, float]) -> Gpu:
    return Gpu(
        id=name,
        arch=entry.arch,
        memory_gb=entry.memory_gb,
        driver=entry.driver or "",
        run_options=tuple(entry.run_options),
        sizing=entry.sizing.model_dump(exclude_defaults=True),
        thresholds={name: float(value) for name, value in {**thresholds, **entry.thresholds}.items()},
    )


def _flavour(name: str, entry: FlavourEntry, accelerator: str) -> Flavour:
    """What the flavour adds for an accelerator; where it states some, it can't be had for the others."""
    missing = entry.accelerators and accelerator not in entry.accelerators
    return Flavour(
        id=name,
        requirements=(*entry.requirements, *entry.accelerators.get(accelerator, [])),
        packages=tuple(entry.packages),
        unavailable=f"it is stated for {', '.join(entry.accelerators)} only" if missing else "",
    )


def _matrix(found: Document, known: Facts, folder: Path) -> Matrix:
    parts = Matrix(
        bases={name: _base(name, entry) for name, entry in found.bases.items()},
        releases={name: _release(name, entry) for name, entry in found.releases.items()},
        accelerators={name: _accelerator(name, entry) for name, entry in found.accelerators.items()},
        gpus={name: _gpu(name, entry, found.validation.thresholds) for name, entry in found.gpus.items()},
        flavours={
            name: {accelerator: _flavour(name, entry, accelerator) for accelerator in found.accelerators}
            for name, entry in found.flavours.items()
        },
        run_options={name: tuple(entry.run_options) for name, entry in found.accelerators.items()},
        products=(),
        targets=(),
        publish_targets={name: _publish_target(name, entry) for name, entry in found.publish_targets.items()},
    )
    products = tuple(_product(entry, parts, found.validation.required, folder) for entry in found.targets)
    if stale := [text for number, one in enumerate(products) for text in _stale_excludes(number, one)]:
        raise _error(stale, folder / "matrix.yaml")
    rows = (row for one in products for row in expand(one))
    made = tuple(complete(row, known, parts.run_options) for row in rows)
    return replace(parts, products=products, targets=_sharing(made))


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


def _product(entry: ProductEntry, parts: Matrix, required: list[str], folder: Path) -> Product:
    return Product(
        releases=tuple(parts.releases[name] for name in entry.releases),
        accelerators=tuple(parts.accelerators[name] for name in entry.accelerators),
        gpus=tuple(parts.gpus[name] for name in entry.gpus),
        flavours=tuple(parts.flavours[name] for name in entry.flavours),
        bases=tuple(parts.bases[name] for name in entry.bases),
        required=tuple(entry.required if entry.required is not None else required),
        without=tuple(entry.without),
        exclude=tuple(entry.exclude),
        arch=entry.arch,
        extra=_extra(entry, folder),
        compression=compression.parse(entry.compression),
    )


def _publish_target(name: str, entry: PublishEntry) -> PublishTarget:
    return PublishTarget(
        id=name,
        compression=compression.parse(entry.compression) if entry.compression else None,
        max_layer_bytes=entry.max_layer_bytes,
        max_layers=entry.max_layers,
    )


def complete(row: Target, known: Facts, options: Mapping[str, tuple[str, ...]]) -> Target:
    """A row with what the facts know of its accelerator, and with the run options of both accelerator and GPU."""
    return replace(
        row,
        accelerator=facts.complete(known, row.accelerator, row.release.torch),
        gpu=replace(
            row.gpu,
            run_options=options[row.accelerator.id] + row.gpu.run_options,
            driver_floor=facts.gpu_driver(known, row.gpu.arch),
        ),
    )


def _clashes(targets: tuple[Target, ...]) -> Iterator[str]:
    seen: set[str] = set()
    for target in targets:
        if target.id in seen:
            yield f"targets: two rows are called {target.id}; exclude one of them"
        seen.add(target.id)


def _unlike_locks(products: tuple[Product, ...]) -> Iterator[str]:
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


def _sharing(rows: tuple[Target, ...]) -> tuple[Target, ...]:
    """Rows that know the oldest C library among those that share their lock, where their own is newer."""
    oldest: dict[str, str] = {}
    for row in rows:
        seen, own = oldest.get(row.lock_name), row.base.glibc
        oldest[row.lock_name] = own if seen is None or facts.older(own, seen) else seen
    return tuple(
        replace(row, oldest_glibc=oldest[row.lock_name] if facts.older(oldest[row.lock_name], row.base.glibc) else "")
        for row in rows
    )
