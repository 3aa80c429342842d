"""matrix.yaml → Matrix: strict at the edge, frozen values inside; every problem is told at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchkiln.errors import MatrixError
from torchkiln.matrix import entries, facts, mistakes, reading
from torchkiln.matrix.target import expand

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchkiln.matrix.document import Document
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.publishing import PublishTarget
    from torchkiln.matrix.target import Accelerator, Base, Flavour, Gpu, Product, Release, Target


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
        problems = list(mistakes.of_sections(found, known, path.parent))
    if found is None or problems:
        raise _error(problems, path)
    matrix = _matrix(found, known, path.parent)
    if problems := list(mistakes.of_rows(matrix.products, matrix.targets)):
        raise _error(problems, path)
    return matrix


def _error(problems: list[str], path: Path) -> MatrixError:
    count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
    lines = "".join(f"\n  {problem}" for problem in problems)
    return MatrixError(f"the matrix has {count}:{lines}", where=str(path), remedy="edit the file, then ./inv matrix")


def _matrix(found: Document, known: Facts, folder: Path) -> Matrix:
    parts = Matrix(
        bases={name: entries.base(name, entry) for name, entry in found.bases.items()},
        releases={name: entries.release(name, entry) for name, entry in found.releases.items()},
        accelerators={name: entries.accelerator(name, entry) for name, entry in found.accelerators.items()},
        gpus={name: entries.gpu(name, entry, found.validation.thresholds) for name, entry in found.gpus.items()},
        flavours={
            name: {accelerator: entries.flavour(name, entry, accelerator) for accelerator in found.accelerators}
            for name, entry in found.flavours.items()
        },
        run_options={name: tuple(entry.run_options) for name, entry in found.accelerators.items()},
        products=(),
        targets=(),
        publish_targets={name: entries.publish_target(name, entry) for name, entry in found.publish_targets.items()},
    )
    products = tuple(entries.product(entry, parts, found.validation.required, folder) for entry in found.targets)
    if stale := list(mistakes.of_excludes(products)):
        raise _error(stale, folder / "matrix.yaml")
    rows = (row for one in products for row in expand(one))
    made = tuple(complete(row, known, parts.run_options) for row in rows)
    return replace(parts, products=products, targets=_sharing(made))


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
