"""Is layers.lock that of the rows as they are planned now? Lines that no row has any more, rows locked in part; pure.

A row that was never locked has lines too, those that it shares with a row that was. So a line is explained by a row
all of whose layers are locked; where there is none, the row that it was written for has lost others of its lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import StaleLockError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torchkiln.oci.image import Layer

KINDS = ("adoption", "base", "bytecode", "toolkit", "wheel")
"""What keys of layers that are made of locked things alone begin with."""
SHOWN = 5
"""So many lines are told; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A row that is locked in part."""

    row: str
    alike: tuple[str, ...]
    """The rows of the same layers, itself included."""
    locked: int
    planned: int
    missing: str
    """Kinds of the layers that are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is wrong with layers.lock."""

    stale: tuple[tuple[str, str], ...] = ()
    """Keys that no row plans, and what people call their layers."""
    parts: tuple[Part, ...] = ()
    whole: tuple[str, ...] = ()
    """Rows all of whose layers are locked."""


def audit(known: Mapping[str, Layer], planned: Mapping[str, frozenset[str]]) -> Findings:
    """Hold layers.lock against the keys that each row plans, in matrix order."""
    current = {key for keys in planned.values() for key in keys}
    whole = [row for row, keys in planned.items() if keys and keys <= known.keys()]
    explained = {key for row in whole for key in planned[row]}
    return Findings(
        stale=tuple((key, known[key].title) for key in stale(known, current)),
        parts=tuple(_parts(known, planned, (known.keys() & current) - explained)),
        whole=tuple(whole),
    )


def stale(known: Iterable[str], current: Collection[str]) -> tuple[str, ...]:
    """Keys of layers.lock that no row plans any more."""
    return tuple(sorted(key for key in known if key.partition("-")[0] in KINDS and key not in current))


def _parts(known: Mapping[str, Layer], planned: Mapping[str, frozenset[str]], left: set[str]) -> Iterable[Part]:
    """Few rows that explain the lines that are left: each time that which has most of them, and misses least."""
    while left:
        having = [row for row, keys in planned.items() if keys & left]
        row = max(having, key=lambda name: len(planned[name] & left) - len(planned[name] - known.keys()))
        keys = planned[row]
        yield Part(
            row=row,
            alike=tuple(name for name, own in planned.items() if own == keys),
            locked=len(keys & known.keys()),
            planned=len(keys),
            missing=", ".join(sorted({key.partition("-")[0] for key in keys - known.keys()})),
        )
        left = left - keys


def refuse(found: Findings, chosen: Collection[str] | None = None) -> None:
    """StaleLockError for lines without a row, and rows locked in part; only of the chosen rows, where some are."""
    parts = [part for part in found.parts if chosen is None or set(chosen) & set(part.alike)]
    lines = found.stale if chosen is None else ()
    if not parts and not lines:
        return
    told = [f"{title} ({key[:20]}…): no row plans it with its locks and formats as they are" for key, title in lines]
    told = [*told[:SHOWN], *([f"{len(told) - SHOWN} more that no row plans"] if len(told) > SHOWN else [])]
    told += [f"{one.row}: {one.locked} of {one.planned} layers are locked; not its {one.missing}" for one in parts]
    rows = [part.row for part in parts] or list(found.whole[:1]) or ["ID"]
    command = f"./inv lock --layers {' '.join(f'--target {row}' for row in rows)}"
    also = ", which deletes the lines that no row plans too" if lines else ""
    raise StaleLockError(
        "layers.lock is not what the rows need:" + "".join(f"\n  {one}" for one in told),
        where="images/locks/layers.lock",
        remedy=f"{command}{also}",
    )
