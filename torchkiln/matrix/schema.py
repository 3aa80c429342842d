"""matrix.yaml → Matrix: strict at the edge, frozen values inside; every problem is told at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchkiln.errors import MatrixError
from torchkiln.matrix import document, facts
from torchkiln.matrix.target import Accelerator, Base, Flavour, Gpu, Product, Release, Target, expand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torchkiln.matrix.document import AcceleratorEntry, BaseEntry, Document, GpuEntry, ProductEntry, ReleaseEntry
    from torchkiln.matrix.facts import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The family: its parts by name, and every row."""

    bases: Mapping[str, Base]
    releases: Mapping[str, Release]
    accelerators: Mapping[str, Accelerator]
    """As stated; a target's own is completed from the facts for its release."""
    gpus: Mapping[str, Gpu]
    flavours: Mapping[str, Flavour]
    targets: tuple[Target, ...]


def load(path: Path, known: Facts | None = None) -> Matrix:
    """Read the matrix; MatrixError lists every problem with its key path and the nearest legal value."""
    try:
        data = path.read_bytes()
    except OSError as error:
        remedy = "git restore matrix.yaml" if isinstance(error, FileNotFoundError) else "make it a readable file"
        raise MatrixError(f"the matrix cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
    found, problems = document.parse(data)
    known = known or facts.read()
    if found:
        problems = [*_references(found), *_accelerators(found, known)]
    if found is None or problems:
        raise _error(problems, path)
    matrix = _matrix(found, known)
    if problems := [*_clashes(matrix.targets), *_unlike_locks(matrix.targets)]:
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
        )
        for section, names, legal in named:
            for position, name in enumerate(names):
                if name not in legal:
                    yield _unknown(("targets", number, section, position), name, legal)
        if entry.base not in found.bases:
            yield _unknown(("targets", number, "base"), entry.base, found.bases)


def _unknown(loc: document.Loc, name: str, legal: Iterable[str]) -> str:
    return f"{document.path(loc)}: {name!r} is not declared{document.nearest(name, legal)}"


def _accelerators(found: Document, known: Facts) -> Iterator[str]:
    """Variants for which no torch was ever built, and versions that contradict their name."""
    legal = facts.every_variant(known)
    for name, entry in found.accelerators.items():
        variant = _accelerator(name, entry).variant
        loc = ("accelerators", name)
        expected = _expected_name(entry)
        if variant not in legal:
            yield f"{document.path(loc)}: no torch is built for {variant!r}{document.nearest(variant, legal)}"
        elif name != expected:
            yield f"{document.path(loc)}: {entry.kind} {entry.version or ''} is called {expected!r}, not {name!r}"


def _expected_name(entry: AcceleratorEntry) -> str:
    prefix = {"cuda": "cu", "rocm": "rocm", "cpu": "cpu"}[entry.kind]
    return prefix + (entry.version or "").replace(".", "")


def _accelerator(name: str, entry: AcceleratorEntry) -> Accelerator:
    return Accelerator(id=name, kind=entry.kind, version=entry.version or "")


def _base(name: str, entry: BaseEntry) -> Base:
    return Base(
        id=name,
        kind=entry.kind,
        suite=entry.suite,
        python=entry.python,
        glibc=entry.glibc,
        packages=tuple(entry.packages),
        mirror=entry.mirror,
    )


def _release(name: str, entry: ReleaseEntry) -> Release:
    return Release(
        id=name,
        torch=entry.torch,
        torchvision=entry.torchvision or "",
        torchaudio=entry.torchaudio or "",
        companions=tuple(entry.companions),
    )


def _gpu(name: str, entry: GpuEntry, thresholds: dict[str, float]) -> Gpu:
    return Gpu(
        id=name,
        arch=entry.arch,
        memory_gb=entry.memory_gb,
        driver=entry.driver or "",
        run_options=tuple(entry.run_options),
        sizing=entry.sizing.model_dump(exclude_defaults=True),
        thresholds={name: float(value) for name, value in (thresholds | entry.thresholds).items()},
    )


def _matrix(found: Document, known: Facts) -> Matrix:
    parts = Matrix(
        bases={name: _base(name, entry) for name, entry in found.bases.items()},
        releases={name: _release(name, entry) for name, entry in found.releases.items()},
        accelerators={name: _accelerator(name, entry) for name, entry in found.accelerators.items()},
        gpus={name: _gpu(name, entry, found.validation.thresholds) for name, entry in found.gpus.items()},
        flavours={
            name: Flavour(id=name, requirements=tuple(entry.requirements)) for name, entry in found.flavours.items()
        },
        targets=(),
    )
    options = {name: tuple(entry.run_options) for name, entry in found.accelerators.items()}
    rows = (row for entry in found.targets for row in expand(_product(entry, parts, found.validation.required)))
    return replace(parts, targets=tuple(_completed(row, known, options) for row in rows))


def _product(entry: ProductEntry, parts: Matrix, required: list[str]) -> Product:
    return Product(
        releases=tuple(parts.releases[name] for name in entry.releases),
        accelerators=tuple(parts.accelerators[name] for name in entry.accelerators),
        gpus=tuple(parts.gpus[name] for name in entry.gpus),
        flavours=tuple(parts.flavours[name] for name in entry.flavours),
        base=parts.bases[entry.base],
        required=tuple(entry.required if entry.required is not None else required),
        without=tuple(entry.without),
        exclude=tuple(entry.exclude),
    )


def _completed(row: Target, known: Facts, options: Mapping[str, tuple[str, ...]]) -> Target:
    """A row with what the facts know of its accelerator, and with the run options of both accelerator and GPU."""
    return replace(
        row,
        accelerator=facts.complete(known, row.accelerator, row.release.torch),
        gpu=replace(row.gpu, run_options=options[row.accelerator.id] + row.gpu.run_options),
    )


def _clashes(targets: tuple[Target, ...]) -> Iterator[str]:
    seen: set[str] = set()
    for target in targets:
        if target.id in seen:
            yield f"targets: two rows are called {target.id}; exclude one of them"
        seen.add(target.id)


def _unlike_locks(targets: tuple[Target, ...]) -> Iterator[str]:
    """Rows that share a lock but would ask the resolver for different things."""
    asked: defaultdict[str, dict[tuple[Release, str], str]] = defaultdict(dict)
    for target in targets:
        asked[target.lock_name].setdefault((target.release, target.base.glibc), target.id)
    for name, rows in asked.items():
        if len(rows) > 1:
            yield f"targets: {' and '.join(rows.values())} share the lock {name} but differ in wheels or glibc"
