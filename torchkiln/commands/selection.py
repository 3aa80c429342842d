"""The rows that --target names, with --extra-requirements on top, as they are made for --for and --compression."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.commands import checkout
from torchkiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Target


def one_row(
    patterns: Sequence[str], extra: str = "", for_: str | None = None, compression: str | None = None
) -> Target:
    """The one row of --target, where several make no sense."""
    first, *others = made_for(rows(patterns, extra=extra), for_, compression)
    if others:
        raise UsageError("one target at a time", where=" ".join(patterns), remedy=f"--target {first.id}")
    return first


def rows(patterns: Sequence[str], family: Matrix | None = None, extra: str = "") -> tuple[Target, ...]:
    """The rows of --target, with --extra-requirements on top; none is an error, since all of them would be a lot."""
    if not patterns:
        raise UsageError("no target was named", remedy="--target ID or --target 'GLOB'; ./inv matrix lists them")
    return selected(family or checkout.family(), patterns, extra)


def made_for(
    chosen: Sequence[Target], for_: str | None, compression: str | None, family: Matrix | None = None
) -> tuple[Target, ...]:
    """The rows as they are made for --for and --compression."""
    from torchkiln.matrix import publishing
    from torchkiln.matrix import target as targets
    from torchkiln.oci import compression as compressions

    if for_ == "":  # a variable that was not set is no wish
        raise UsageError("--for is empty", remedy="--for NAME, of publish_targets in matrix.yaml, or without it")
    asked = None if compression is None else compressions.parse(compression)
    declared = (family or checkout.family()).publish_targets if for_ else {}
    place = publishing.find(declared, for_ or "")
    return tuple(targets.publishing(row, place, asked) for row in chosen)


def selected(family: Matrix, patterns: Sequence[str], extra: str = "") -> tuple[Target, ...]:
    """The rows of --target, or all if there is none; a variable that was not set is told as such."""
    from torchkiln.matrix import extra as additions
    from torchkiln.matrix.target import select

    if not all(patterns):
        raise UsageError("--target is empty", remedy="--target ID or --target 'GLOB'; ./inv matrix lists them")
    if extra:
        return additions.select(family.targets, patterns, additions.read(Path(extra)))
    return select(family.targets, patterns)


def caution(row: Target) -> None:
    """Say what lint warns of in a row that is about to be planned or built."""
    from torchkiln import console
    from torchkiln.matrix import compat, facts

    for line in compat.warnings(row, facts.read()):
        console.warn(line)
