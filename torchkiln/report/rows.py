"""Rows of the matrix for people: a table for a terminal, and the README's, in Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.matrix.target import GENERIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

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


def table(rows: Sequence[Row], *, notes: bool) -> Table:
    """Rows, their locks, and what lint finds: errors and warnings in words; notes too if asked, else their rules.

    What an id says already has no column of its own.
    """
    from torchkiln.report.tables import columns, plain  # noqa: PLC0415  the README's table needs no rich

    shown = columns("target", "torch", "vision, audio", "GPU", "driver ≥", "python", "lock", "findings")
    for number in (0, 4, 6):  # so that a narrow terminal folds the others
        shown.columns[number].no_wrap = True
    for row in rows:
        target = row.target
        shown.add_row(
            target.id,
            target.release.torch,
            _companions(target),
            target.gpu.arch or "any",
            target.driver_floor or "-",
            target.base.python,
            f"[{LOCKS.get(row.lock, 'default')}]{row.lock}{'*' * bool(row.unconfirmed)}[/]",
            plain("\n".join(_said(row, notes=notes))),
        )
    return shown


LOCKS = {"locked": "green", "unlocked": "dim", "stale": "yellow"}


def _companions(target: Target) -> str:
    return ", ".join(version for version in (target.release.torchvision, target.release.torchaudio) if version) or "-"


def _said(row: Row, *, notes: bool) -> Iterable[str]:
    told = [finding for finding in row.findings if notes or finding.severity != "note"]
    yield from (f"{finding.severity}: {finding.message}" for finding in told)
    if rules := dict.fromkeys(finding.rule for finding in row.findings if finding not in told):
        yield f"notes: {', '.join(rules)}"


def summary(rows: Sequence[Row], *, notes: bool) -> str:
    """How many rows there are, how they stand, and where the notes are."""
    found = Counter(finding.severity for row in rows for finding in row.findings)
    locks = Counter(row.lock for row in rows)
    parts = [f"{count} {lock}" for lock in LOCKS if (count := locks[lock])]
    parts += (
        [f"* {marked} with a hash of a single source"] if (marked := sum(bool(row.unconfirmed) for row in rows)) else []
    )
    parts += [_count(found[severity], severity) for severity in ("error", "warning", "note") if found[severity]]
    more = "; notes in words: --verbose, or one --target" if found["note"] and not notes else ""
    return f"{_count(len(rows), 'row')}: {', '.join(parts)}{more}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


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
        "; ".join(dict.fromkeys(_companions(target) for target in targets)),
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
