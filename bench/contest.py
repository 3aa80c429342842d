"""A benchmark as a value, and the one loop that runs all of them: contestants take turns, round by round."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bench import machine
from bench.figures import Measured, Result
from torchkiln.console import note, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from bench.figures import Figures, Verdict
    from bench.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Somebody who can do the job: `play` does it once from the same start, and leaves nothing behind."""

    name: str
    what: str
    play: Callable[[], Figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure as the table shows it."""

    figure: str
    heading: str
    unit: str = "s"
    """s, MB or GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a benchmark takes, for each GB of the rows' wheels; from a first trial on two cores."""

    seconds: float
    """Of one round of all contestants, and of getting ready."""
    disk: float
    """GB at the worst moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One table: who takes part, what is shown, what is wanted."""

    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    """The first one is plotted."""
    contestants: Callable[[Stage], AbstractContextManager[Sequence[Contestant]]]
    wanted: Callable[[Sequence[Measured]], tuple[Verdict, ...]]
    cost: Cost
    rows: tuple[str, ...] = ()
    """What it is meant for, where that is not one row."""
    once: bool = False
    """Too long for three rounds."""


def run(bench: Bench, stage: Stage, *, rounds: int) -> Result:
    """Every contestant `rounds` times, taking turns; whoever was first is last in the next round."""
    began, started = datetime.now(UTC), time.monotonic()
    figures: dict[str, list[Figures]] = {}
    loads: list[float] = []
    with step(f"bench {bench.name}"), bench.contestants(stage) as contestants:
        for number in range(rounds):
            loads.append(round(os.getloadavg()[0], 2))
            for one in turned(contestants, number):
                with step(f"{one.name}, round {number + 1} of {rounds}"):
                    figures.setdefault(one.name, []).append(one.play())
                note(f"{one.name}: {said(figures[one.name][-1])}")
    measured = tuple(Measured(name=one.name, what=one.what, rounds=tuple(figures[one.name])) for one in contestants)
    return Result(
        bench=bench.name,
        rows=tuple(row.target.id for row in stage.rows),
        commit=machine.commit(stage.project.root),
        began=began.isoformat(timespec="seconds"),
        took=round(time.monotonic() - started, 1),
        machine=machine.describe(),
        loads=tuple(loads),
        contestants=measured,
        verdicts=bench.wanted(measured),
    )


def only(bench: Bench, names: Sequence[str]) -> Callable[[Stage], AbstractContextManager[Sequence[Contestant]]]:
    """Those of its contestants whose names begin with one of these; all if there are none."""

    @contextmanager
    def chosen(stage: Stage) -> Iterator[Sequence[Contestant]]:
        with bench.contestants(stage) as found:
            yield [one for one in found if not names or one.name.startswith(tuple(names))]

    return chosen


def turned(contestants: Sequence[Contestant], number: int) -> list[Contestant]:
    """The order of a round: nobody is always first, when caches are cold, or always last."""
    start = number % len(contestants) if contestants else 0
    return [*contestants[start:], *contestants[:start]]


def said(figures: Figures) -> str:
    """One round in a line."""
    return ", ".join(f"{name} {value:,.2f}".rstrip("0").rstrip(".") for name, value in figures.items())
