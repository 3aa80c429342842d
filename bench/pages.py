"""Results → one Markdown page and a plot for each; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.charts import Bar, svg
from bench.figures import OURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.contest import Bench, Column
    from bench.figures import Measured, Result, Verdict

UNITS = {"MB": 1e6, "GB": 1e9}
HEAD = """\
# Results

Written by `./inv bench`; the raw figures of every round are in the JSON files beside this page. Medians; dots in the
plots are single rounds. What is compared, and why that is fair: [bench/README.md](../README.md).
"""
NOTHING = (
    "\nNothing was measured yet: `./inv bench all` takes a quiet machine, and shows what it takes with `--estimate`.\n"
)


def page(results: Sequence[Result], benches: Mapping[str, Bench]) -> str:
    """Every result, in the order of the benches."""
    order = list(benches)
    shown = sorted((one for one in results if one.bench in benches), key=lambda one: order.index(one.bench))
    return HEAD + ("".join(section(one, benches[one.bench]) for one in shown) or NOTHING)


def section(result: Result, bench: Bench) -> str:
    """Table, verdicts, plot and machine of one result."""
    lines = ["", f"## {bench.title}", "", f"{bench.about} Rows: {', '.join(result.rows)}.", ""]
    lines += [*table(result.contestants, bench.columns), ""]
    lines += [verdict(one) for one in result.verdicts]
    lines += ["", f"![{bench.title}]({bench.name}.svg)", "", machine(result), ""]
    return "\n".join(lines)


def table(contestants: Sequence[Measured], columns: Sequence[Column]) -> list[str]:
    """Medians, a row for each contestant; a dash where it has no such figure."""
    lines = ["| | " + " | ".join(f"{column.heading} ({column.unit})" for column in columns) + " | how |"]
    lines.append("| --- |" + " ---: |" * len(columns) + " --- |")
    for one in contestants:
        cells = [shown(one.median(column.figure), column.unit) for column in columns]
        lines.append(f"| {one.name} | " + " | ".join(cells) + f" | {one.what} |")
    return lines


def shown(value: float | None, unit: str) -> str:
    """A figure in its unit, with about three digits."""
    if value is None:
        return "-"
    scaled = value / UNITS.get(unit, 1)
    return f"{scaled:,.2f}" if scaled < 10 else f"{scaled:,.1f}" if scaled < 100 else f"{scaled:,.0f}"  # noqa: PLR2004


def verdict(one: Verdict) -> str:
    """What was wanted, what was found, and whether that will do."""
    bound = "at most" if one.at_most else "at least"
    word = "Reached" if one.reached else "**Missed**"
    return f"- {word}: {one.said}: {one.found:g} {one.unit}, {bound} {one.limit:g} wanted."


def machine(result: Result) -> str:
    """Where and when."""
    about = result.machine
    tools = ", ".join(
        f"{name} {about[name]}" for name in ("docker", "buildah", "registry", "python") if about.get(name)
    )
    rounds = max((len(one.rounds) for one in result.contestants), default=0)
    loads = ", ".join(f"{load:g}" for load in result.loads)
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, Linux {about['kernel']}; {tools}. "
        f"{rounds} round{'s' * (rounds != 1)} at {result.commit or 'no commit'}, {result.began}; "
        f"load before each: {loads}."
    )


def plot(result: Result, bench: Bench) -> str:
    """The first column as bars."""
    column = bench.columns[0]
    scale = UNITS.get(column.unit, 1)
    bars = tuple(
        Bar(
            name=one.name,
            value=value / scale,
            rounds=tuple(each / scale for each in one.values(column.figure)),
            label=f"{shown(value, column.unit)} {column.unit}",
            ours=one.name.startswith(OURS),
        )
        for one in result.contestants
        if (value := one.median(column.figure)) is not None
    )
    return svg(f"{bench.title}: {column.heading} ({column.unit})", bars)
