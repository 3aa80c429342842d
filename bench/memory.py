"""The peak of memory while an image is built and pushed."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench import meter, ours, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, most
from bench.peers import PLAIN, table
from bench.push import theirs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.peers import Peer
    from bench.stage import Stage


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """Ours, and the engine of the peer with all that it starts."""
    with table.dockers(stage, PLAIN) as (peer,):
        play = partial(theirs_watched, stage, peer, peer.pid)
        yield (
            Contestant(name=OURS, what="build --push, all processes", play=partial(mine, stage)),
            Contestant(name=peer.name, what="dockerd and what it starts, build and push", play=play),
        )


def mine(stage: Stage) -> Figures:
    """The highest sum over all processes of one build."""
    with ours.fresh(stage) as kiln, services.registry(stage.work) as registry:
        words = ours.building(stage.row, push=f"{registry.address}/bench:ours")
        with kiln.started(*words) as running, meter.memory(running.pid) as gauge:
            ours.ended(running)
        return {"bytes": gauge.highest, "largest": gauge.largest}


def theirs_watched(stage: Stage, peer: Peer, root: int) -> Figures:
    """The same of a peer."""
    with meter.memory(root) as gauge:
        theirs(stage, peer)
    return {"bytes": gauge.highest, "largest": gauge.largest}


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return most("bytes at the peak", found, limit=300e6, figure="bytes", unit="bytes")


BENCH = Bench(
    name="memory",
    title="Memory: the peak while building and pushing",
    about="Proportional set size, summed over all processes, looked at 20 times a second.",
    columns=(
        Column(figure="bytes", heading="peak", unit="MB"),
        Column(figure="largest", heading="largest process then", unit="MB"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=100, disk=5),
)
