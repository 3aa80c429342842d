"""Are the committed locks those of the rows? Told by files alone: no network, no resolver."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import LockError, StaleLockError
from torchkiln.lock import fit, rows, sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from torchkiln.errors import TorchkilnError
    from torchkiln.matrix.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found; several rows that use the same parts of the same files are one finding."""

    locked: tuple[Target, ...]
    unlocked: tuple[tuple[Target, str], ...]
    """Rows without a lock, and what there is no lock for; no error."""
    unconfirmed: tuple[tuple[str, tuple[str, ...]], ...]
    """Lock files with packages whose hash has a single source; no error."""
    problems: tuple[TorchkilnError, ...]
    """Locks that are stale, do not fit, cannot be read, or belong to no row."""


def audit(folder: Path, family: Iterable[Target], chosen: Sequence[Target], *, orphans: bool = True) -> Audit:
    """Hold the locks of the chosen rows against them, and the files against all rows there are, the family."""
    locked: list[Target] = []
    unlocked: list[tuple[Target, str]] = []
    single: defaultdict[str, set[str]] = defaultdict(set)
    problems: dict[str, TorchkilnError] = {}
    for alike in _alike(chosen):
        row = alike[0]
        try:
            what = rows.lacking(folder, row)
            if not fit.lacking(row, *rows.files(folder, row)):  # though its base may have no list yet
                single[row.lock_name] |= set(rows.read(folder, row).unconfirmed)
            if what:
                unlocked += [(one, what) for one in alike]
            else:
                rows.packages(folder, row)
                locked += alike
        except (LockError, StaleLockError) as error:
            problems.setdefault(error.what, error)  # rows with other wheels may share a base, and what is wrong with it
    more = _orphans(folder, list(family)) if orphans else ()
    return Audit(
        locked=tuple(locked),
        unlocked=tuple(unlocked),
        unconfirmed=tuple((name, tuple(sorted(found))) for name, found in single.items() if found),
        problems=(*problems.values(), *more),
    )


def _alike(chosen: Iterable[Target]) -> Iterable[list[Target]]:
    """Rows that use the same parts of the same files, which rows for several GPUs do."""
    groups: defaultdict[object, list[Target]] = defaultdict(list)
    for row in chosen:
        parts = (fit.asked(row).checksum, row.lock_name, tuple(fit.additions(row).items()))
        groups[*parts, row.base_lock_name, row.extra].append(row)
    return groups.values()


def _orphans(folder: Path, family: Sequence[Target]) -> Iterator[LockError]:
    """Files, and sections of files, that no row uses."""
    known = {name for row in family for name in (row.lock_name, row.base_lock_name)}
    wanted = {(row.lock_name, row.flavour.id) for row in family if row.flavour.requirements}
    for path in sorted(folder.glob("*.txt")):
        if path.name not in known:
            yield LockError(f"{path.name} is no row's lock", where=str(path), remedy=f"git rm images/locks/{path.name}")
        elif not path.name.startswith("base-"):
            yield from _orphaned_sections(path, wanted)


def _orphaned_sections(path: Path, wanted: set[tuple[str, str]]) -> Iterator[LockError]:
    try:
        found = sections.read(path).sections
    except LockError:
        return  # told where its rows are
    for name in found:
        if (path.name, name) not in wanted:
            what = f"no row uses section {name} of {path.name}"
            yield LockError(what, where=str(path), remedy="./inv lock for a row of that file leaves it out")


def plain(found: Audit) -> str:
    """What was found, for people; rows that lack the same thing on one line."""
    why: defaultdict[str, list[str]] = defaultdict(list)
    for row, what in found.unlocked:
        why[what].append(row.id)
    lines = [f"unlocked: {', '.join(ids)}: {what}" for what, ids in why.items()]
    lines += [
        f"hashes with a single source, unconfirmed: {name}: {', '.join(names)}" for name, names in found.unconfirmed
    ]
    wrong = f", {len(found.problems)} wrong" if found.problems else ""
    locked = "1 row is locked" if len(found.locked) == 1 else f"{len(found.locked)} rows are locked"
    return "\n".join([*lines, f"{locked}, {len(found.unlocked)} unlocked{wrong}"])


def refuse(found: Audit) -> None:
    """One error that tells every problem: stale if any lock is."""
    if found.problems:
        kind = next((type(one) for one in found.problems if isinstance(one, StaleLockError)), LockError)
        told = "".join(f"\n  {one.what}" for one in found.problems)
        remedies = dict.fromkeys(one.remedy for one in found.problems if one.remedy)
        remedy = "; ".join(remedies)
        locks = "1 lock is" if len(found.problems) == 1 else f"{len(found.problems)} locks are"
        raise kind(f"{locks} not what the rows need:{told}", remedy=remedy)
