"""Cached wheels and a base → an image in a registry on loopback, against BuildKit and buildah with uv."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench import ours, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, times
from bench.peers import table
from bench.stage import context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.peers import Peer
    from bench.services import Registry
    from bench.stage import Row, Stage

PLAIN = ("docker plain", "buildah plain")
TUNED = ("docker tuned", "buildah tuned")
KNOWN = f"{OURS}, layers known"


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """Ours twice, and each peer twice."""
    known = learned(stage)
    with table.everybody(stage) as peers:
        yield (
            Contestant(name=OURS, what="build --push; nothing known of the layers", play=partial(mine, stage)),
            Contestant(
                name=KNOWN,
                what="the same, with the row in layers.lock and boundaries.lock",
                play=partial(mine, stage, known),
            ),
            *(Contestant(name=peer.name, what=peer.what, play=partial(theirs, stage, peer)) for peer in peers),
        )


def learned(stage: Stage) -> Mapping[str, str]:
    """What the locks say once somebody has built the row."""
    with ours.fresh(stage) as kiln, services.registry(stage.work) as registry:
        return ours.learned(kiln, stage.row, kiln.build(stage.row, push=f"{registry.address}/bench:ours"))


def mine(stage: Stage, known: Mapping[str, str] = ours.NOTHING) -> Figures:
    """One build that streams into an empty registry."""
    with ours.fresh(stage, known=known) as kiln, services.registry(stage.work) as registry:
        began = time.monotonic()
        kiln.build(stage.row, push=f"{registry.address}/bench:ours")
        return {"seconds": time.monotonic() - began, "bytes": registry.size}


def theirs(stage: Stage, peer: Peer) -> Figures:
    """Build, then push into an empty registry; what was sent to the engine once stays there."""
    with services.registry(stage.work) as registry:
        try:
            return built_and_pushed(peer, stage.work, stage.row, registry)
        finally:
            peer.forget()


def built_and_pushed(
    peer: Peer, work: Path, row: Row, registry: Registry, *, tag: str = "peer", compression: str = ""
) -> Figures:
    """Seconds of both steps, and what the registry holds then; the wheels are at hand before the clock runs."""
    wheels = context(row, work / "context")
    peer.send(wheels, base=table.base(row))
    began = time.monotonic()
    peer.build(wheels, base=table.base(row), tag=tag)
    built = time.monotonic()
    peer.push(tag, f"{registry.address}/bench:{tag}", compression=compression)
    ended = time.monotonic()
    return {"seconds": ended - began, "build": built - began, "push": ended - built, "bytes": registry.size}


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return (
        *times("faster than the best peer as people write it", found, theirs=PLAIN, limit=12),
        *times("faster than the best tuned peer", found, theirs=TUNED, limit=8),
    )


BENCH = Bench(
    name="push",
    title="Push: from cached wheels and a base to an image in a registry",
    about="The registry is on loopback and empty. Ours holds bytecode, suite and config too.",
    columns=(
        Column(figure="seconds", heading="all"),
        Column(figure="build", heading="build"),
        Column(figure="push", heading="push"),
        Column(figure="bytes", heading="in the registry", unit="MB"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=320, disk=5),
)
