"""The same row once more, with one small package changed: what a daily rebuild costs."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench import ours, patched, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, times
from bench.peers import table
from bench.push import built_and_pushed
from bench.stage import changed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.peers import Peer
    from bench.stage import Row, Stage

ONE_STEP, SPLIT = "docker plain", "docker tuned"


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """Ours, and both Dockerfiles in BuildKit: buildah's cache does not notice other wheels in a mounted folder."""
    with table.dockers(stage) as peers:
        yield (
            Contestant(name=OURS, what="the line of the lock changed, build --push", play=partial(mine, stage)),
            *(Contestant(name=peer.name, what=peer.what, play=partial(theirs, stage, peer)) for peer in peers),
        )


def later(stage: Stage) -> Row:
    """The row with the changed package."""
    (old,) = (pin for pin in stage.row.pins if pin.name == patched.PACKAGE)
    return changed(stage.row, *patched.wheel(stage.row.wheels[old.sha256], stage.work / "patched"))


def mine(stage: Stage) -> Figures:
    """Build and push, change the lock, and again with the clock."""
    row = later(stage)
    with ours.fresh(stage) as kiln, services.registry(stage.work) as registry:
        kiln.build(stage.row, push=f"{registry.address}/bench:old")
        ours.give(stage, row, kiln.home)
        ours.repin(kiln.root, row.target, stage.row.pins, row.pins)
        before, began = registry.size, time.monotonic()
        kiln.build(row, push=f"{registry.address}/bench:new")
        return {"seconds": time.monotonic() - began, "bytes": registry.size - before}


def theirs(stage: Stage, peer: Peer) -> Figures:
    """Build and push, change the folder of wheels, and again with the clock and the engine's cache."""
    with services.registry(stage.work) as registry:
        try:
            built_and_pushed(peer, stage.work, stage.row, registry, tag="old")
            before = registry.size
            figures = built_and_pushed(peer, stage.work, later(stage), registry, tag="new")
        finally:
            peer.forget()
    return {**figures, "bytes": figures["bytes"] - before}


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return (
        *times("faster than the one-step Dockerfile", found, theirs=[ONE_STEP], limit=100),
        *times("against the split Dockerfile", found, theirs=[SPLIT], limit=1),
    )


BENCH = Bench(
    name="again",
    title="Again: the same row with one small package changed",
    about=f"{patched.PACKAGE} becomes a post release; everything else is as it was, in the caches and in the registry.",
    columns=(
        Column(figure="seconds", heading="all"),
        Column(figure="build", heading="build"),
        Column(figure="push", heading="push"),
        Column(figure="bytes", heading="new in the registry", unit="MB"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=300, disk=5),
)
