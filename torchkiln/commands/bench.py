"""`./inv bench`: Torchkiln side by side with what others offer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import JSON, TARGET
from torchkiln.commands.output import show
from torchkiln.commands.selection import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context


@task(
    positional=["what"],
    iterable=["target"],
    help={
        "what": "list, all, or assemble, push, again, patch_day, family, flavours, compose, zstd, start, pull, memory",
        "rounds": "how often each contestant runs; default 3, and 1 for the long ones",
        "results": "folder for results; default bench/results",
        "estimate": "say what it would take, and do nothing",
        "fresh": "`all`: also what this commit has results of",
    }
    | TARGET
    | JSON,
)
@guarded
def bench(
    _: Context,
    what: str,
    target: Sequence[str],
    rounds: str = "",
    results: str = "",
    estimate: bool = False,
    fresh: bool = False,
    json: bool = False,
) -> None:
    """Measure, side by side with what others offer; bench/README.md says what is compared."""
    from bench import catalogue, contest, machine, pages, stage

    if what in {"list", "--help", "-h"}:
        show(catalogue.told())
        return
    wanted = catalogue.counted(rounds)
    work, folder = checkout.project(), Path(results).absolute() if results else checkout.ROOT / "bench" / "results"
    asked = catalogue.chosen(what)
    for one in asked:
        names = catalogue.rows(one, target, among=len(asked))
        number, weight = catalogue.rounds(one, wanted), stage.weight(work, rows(names))
        show(catalogue.estimate(one, weight, number))
        if estimate:
            continue
        if what == "all" and not fresh and catalogue.done(folder, one, names, machine.commit(checkout.ROOT)):
            show(f"{one.name}: this commit has a result")
            continue
        stage.need(work.home.root, catalogue.gigabytes(one, weight))
        with stage.prepared(work, rows(names)) as ready:
            result = contest.run(one, ready, rounds=number)
        catalogue.write(folder, result)
        show(result.to_json() if json else pages.section(result, one))
