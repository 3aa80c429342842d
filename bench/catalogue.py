"""Which benchmarks there are, what they take, and where their results lie."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bench import again, assemble, compose, family, memory, pages, patch_day, pull, push, start, zstd
from bench.figures import from_json
from torchkiln.errors import UsageError
from torchkiln.home import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.contest import Bench
    from bench.figures import Result

MODULES = (assemble, push, again, patch_day, family, compose, zstd, start, pull, memory)
BENCHES: dict[str, Bench] = {one.name: one for one in (*(each.BENCH for each in MODULES), family.FLAVOUR_BENCH)}
ROUNDS = 3
ROW = "torch25-cu124"
"""The row that is measured where none is asked for."""
PAGE = "README.md"


def chosen(name: str) -> tuple[Bench, ...]:
    """One, or all; UsageError for a name that none has."""
    if name == "all":
        return tuple(BENCHES.values())
    if name not in BENCHES:
        raise UsageError(f"no benchmark is called {name}", remedy=f"list, all, {', '.join(BENCHES)}")
    return (BENCHES[name],)


def told() -> str:
    """Which there are and what each is about, for who asked for none."""
    wide = max(map(len, BENCHES))
    listed = "\n".join(f"  {name:{wide}}  {one.title}" for name, one in BENCHES.items())
    return f"{listed}\n  {'all':{wide}}  each of them, going on after a break\n\n{OPTIONS}"


OPTIONS = """./inv bench NAME [--target ID] [--rounds N] [--results FOLDER] [--fresh] [--json]
./inv bench [NAME] --estimate says what it takes, of all without a name; ./inv --help bench has every option"""


def rows(bench: Bench, asked: Sequence[str], *, among: int = 1) -> tuple[str, ...]:
    """The rows it runs on: those that were asked for, else its own, else the row that figures are wanted of.

    Where it is one of several benches, those of a family keep their own rows: the one asked for is for the others.
    """
    own = bench.rows if among > 1 else ()
    return own or tuple(asked) or bench.rows or (ROW,)


def counted(rounds: str) -> int:
    """How many rounds are asked for, 0 where it is left open; UsageError for what is no number of rounds."""
    if not rounds:
        return 0
    if not rounds.isdecimal() or int(rounds) < 1:
        raise UsageError(f"--rounds {rounds}: there is no figure without a round", remedy="--rounds 1, or more")
    return int(rounds)


def rounds(bench: Bench, asked: int) -> int:
    """How often: as asked, else once for a long one."""
    return asked or (1 if bench.once else ROUNDS)


def estimate(bench: Bench, weight: int, number: int) -> str:
    """What it takes, in a line, for rows whose wheels have that many bytes."""
    minutes = bench.cost.seconds * weight / 1e9 * number / 60
    return f"{bench.name}: about {max(minutes, 1):.0f} min and {gigabytes(bench, weight):.0f} GB of disk"


def gigabytes(bench: Bench, weight: int) -> float:
    """Of disk, at the worst moment; a base and what engines keep for themselves besides."""
    return bench.cost.disk * weight / 1e9 + 2


def done(folder: Path, bench: Bench, names: Sequence[str], commit: str) -> bool:
    """Whether a result of this very commit and these rows lies there, so that `all` can go on after a break."""
    found = [one for one in read(folder) if one.bench == bench.name]
    return any(one.rows == tuple(names) and one.commit == commit and not commit.endswith("+") for one in found)


def read(folder: Path) -> tuple[Result, ...]:
    """The results that lie there."""
    return tuple(from_json(json.loads(path.read_text())) for path in sorted(folder.glob("*.json")))


def write(folder: Path, result: Result) -> None:
    """A result, its plot, and the page of all."""
    write_atomically(folder / f"{result.bench}.json", (json.dumps(result.to_json(), indent=1) + "\n").encode())
    write_atomically(folder / f"{result.bench}.svg", pages.plot(result, BENCHES[result.bench]).encode())
    write_atomically(folder / PAGE, pages.page(read(folder), BENCHES).encode())
