"""Rows of the matrix for people: how they stand, and the README's table of them, in Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.matrix.target import GENERIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchkiln.matrix.rules import Finding
    from torchkiln.matrix.target import Target

BEGIN, END = "<!-- targets -->\n", "<!-- /targets -->"
"""Marks in the README around what is generated."""
KINDS = {"cuda": "CUDA", "rocm": "ROCm", "cpu": "CPU"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A target with what is known of it."""

    target: Target
    findings: tuple[Finding, ...] = ()
    lock: str = ""
    """`locked`, `unlocked` or `stale`."""
    unconfirmed: tuple[str, ...] = ()
    """The packages whose pinned hash has a single source."""

    @property
    def refused(self) -> bool:
        """Whether lint has an error for it."""
        return any(finding.severity == "error" for finding in self.findings)


LOCKS = {"locked": "green", "unlocked": "dim", "stale": "yellow"}
"""States of locks, and their colours."""


def companions(target: Target) -> str:
    """Versions of torchvision and torchaudio, with a dash for the one that a row goes without."""
    vision, audio = target.release.torchvision, target.release.torchaudio
    return f"{vision or '-'}, {audio or '-'}" if vision or audio else "-"


def summary(rows: Sequence[Row], *, notes: bool) -> str:
    """How many rows there are, how they stand, and where the notes are."""
    found = Counter(finding.severity for row in rows for finding in row.findings)
    locks = Counter(row.lock for row in rows)
    parts = [f"{count} {lock}" for lock in LOCKS if (count := locks[lock])]
    parts += (
        [f"* {marked} with a hash of a single source"] if (marked := sum(bool(row.unconfirmed) for row in rows)) else []
    )
    parts += [counted(found[severity], severity) for severity in ("error", "warning", "note") if found[severity]]
    more = "; notes in words: --verbose, or one --target" if found["note"] and not notes else ""
    return f"{counted(len(rows), 'row')}: {', '.join(parts)}{more}"


def counted(number: int, word: str) -> str:
    """A number of things: 1 row, 2 rows, 3 mismatches."""
    more = "es" if word.endswith(("ch", "s")) else "s"
    return f"{number} {word}{'' if number == 1 else more}"


def markdown(rows: Sequence[Row]) -> str:
    """The README's table: a line for each release and accelerator, with what its rows have between them; then bases."""
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.target.release.id, row.target.accelerator.id].append(row)
    head = (
        "rows",
        "PyTorch",
        "vision, audio",
        "accelerator",
        "driver at least",
        "Python",
        "GPUs",
        "flavours",
        "locked",
    )
    lines = [head, ("---",) * len(head), *(_line(group) for group in groups.values())]
    bases = {f"{row.target.base.python} {row.target.base.id}" for row in rows}
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\nBases: Python {', '.join(sorted(bases))}.\n"


def _line(group: Sequence[Row]) -> tuple[str, ...]:
    """What rows of one release and accelerator have between them, each value once."""
    targets = [row.target for row in group]
    first = targets[0]
    locked = sum(row.lock == "locked" for row in group)
    return (
        f"`{first.release.id}-{first.accelerator.id}*` ({len(group)})" if len(group) > 1 else f"`{first.id}`",
        first.release.torch,
        "; ".join(dict.fromkeys(companions(target) for target in targets)),
        f"{KINDS[first.accelerator.kind]} {first.accelerator.version}".strip(),
        first.accelerator.driver_floor or "-",
        _each(sorted((target.base.python for target in targets), key=_minor)),
        _each("any" if target.gpu.id == GENERIC else target.gpu.id for target in targets),
        _each(target.flavour.id for target in targets),
        "yes" if locked == len(group) else f"{locked} of {len(group)}" if locked else "no",
    )


def _minor(python: str) -> int:
    return int(python.split(".")[1])


def _each(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def filled(text: str, rows: Sequence[Row]) -> str:
    """The README with its table of targets between the two marks."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{mark}{markdown(rows)}{end}{after}"
