"""What was measured, as values: rounds of contestants, medians, and how they stand beside what was wanted; pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Figures = dict[str, float]
"""By name, of one round: seconds, bytes."""
OURS = "torchkiln"
"""The contestant that the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One contestant and what each of its rounds gave."""

    name: str
    what: str
    """How it was done, in a sentence."""
    rounds: tuple[Figures, ...]

    def values(self, figure: str) -> tuple[float, ...]:
        """One figure of every round that has it."""
        return tuple(one[figure] for one in self.rounds if figure in one)

    def median(self, figure: str) -> float | None:
        """The middle one; None where no round has that figure."""
        values = self.values(figure)
        return median(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Something wanted, and what was found."""

    said: str
    found: float
    limit: float
    at_most: bool = True
    unit: str = ""

    @property
    def reached(self) -> bool:
        """Whether the figure is on the right side of its limit."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One benchmark, as it ran on one machine on one day."""

    bench: str
    rows: tuple[str, ...]
    commit: str
    began: str
    """RFC 3339, UTC."""
    took: float
    """Seconds, with preparation and cleaning."""
    machine: Mapping[str, str | float]
    loads: tuple[float, ...]
    """What else kept the machine busy: the load average of a minute before each round began."""
    contestants: tuple[Measured, ...]
    verdicts: tuple[Verdict, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """As it lies in bench/results."""
        return asdict(self)


def from_json(data: Mapping[str, Any]) -> Result:
    """The inverse of `Result.to_json`."""
    contestants = tuple(Measured(**{**one, "rounds": tuple(one["rounds"])}) for one in data["contestants"])
    verdicts = tuple(Verdict(**one) for one in data["verdicts"])
    values = {"rows": tuple(data["rows"]), "loads": tuple(data["loads"])}
    return Result(**{**data, **values, "contestants": contestants, "verdicts": verdicts})


def best(contestants: Sequence[Measured], figure: str, *names: str) -> float | None:
    """The least median among the contestants of these names; None if none of them has that figure."""
    found = [value for one in contestants if one.name in names and (value := one.median(figure)) is not None]
    return min(found, default=None)


def times(
    said: str,
    found: Sequence[Measured],
    *,
    theirs: Sequence[str],
    limit: float,
    figure: str = "seconds",
    ours: str = OURS,
) -> tuple[Verdict, ...]:
    """How many times less ours takes than the best of theirs; nothing where one side was not measured."""
    mine, other = best(found, figure, ours), best(found, figure, *theirs)
    if not mine or other is None:
        return ()
    return (Verdict(said=said, found=round(other / mine, 2), limit=limit, at_most=False, unit="times"),)


def share(
    said: str,
    found: Sequence[Measured],
    *,
    theirs: Sequence[str],
    limit: float,
    figure: str = "bytes",
    ours: str = OURS,
) -> tuple[Verdict, ...]:
    """Ours as a part of the best of theirs; nothing where one side was not measured."""
    mine, other = best(found, figure, ours), best(found, figure, *theirs)
    if mine is None or not other:
        return ()
    return (Verdict(said=said, found=round(mine / other, 3), limit=limit, unit="of theirs"),)


def most(said: str, found: Sequence[Measured], *, limit: float, figure: str, unit: str) -> tuple[Verdict, ...]:
    """A figure of ours that stands by itself."""
    mine = best(found, figure, OURS)
    return () if mine is None else (Verdict(said=said, found=round(mine, 2), limit=limit, unit=unit),)
