"""A second machine with an empty cache: an image put together from layers that a registry holds."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench import meter, ours, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, most

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.services import Registry
    from bench.stage import Stage


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """Ours alone: no peer can do that."""
    with services.registry(stage.work) as registry:
        with ours.fresh(stage) as kiln:
            entry = kiln.build(stage.row, push=f"{registry.address}/bench:first")
            known = ours.learned(kiln, stage.row, entry)
        play = partial(mine, stage, registry, known)
        yield (Contestant(name=OURS, what="build --from --push, no wheel and no layer at hand", play=play),)


def mine(stage: Stage, registry: Registry, known: Mapping[str, str]) -> Figures:
    """Compose and push beside what is there, through a port that counts."""
    with ours.fresh(stage, known=known, empty=True) as kiln, meter.counted(registry.address) as way:
        repository, began = f"{way.address}/bench", time.monotonic()
        kiln.build(stage.row, "--from", repository, push=f"{repository}:second")
        return {"seconds": time.monotonic() - began, "bytes": way.bytes}


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return (
        *most("seconds to compose and push", found, limit=5, figure="seconds", unit="s"),
        *most("bytes on the way, both directions", found, limit=2e6, figure="bytes", unit="bytes"),
    )


BENCH = Bench(
    name="compose",
    title="Compose: a second machine with an empty cache, the registry full",
    about="Bytes are counted on the connection, requests and answers.",
    columns=(
        Column(figure="seconds", heading="all"),
        Column(figure="bytes", heading="moved", unit="MB"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=15, disk=3),
)
