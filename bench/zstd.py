"""What zstd saves: compressed size of an image, beside Docker's gzip layers."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench import ours, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, share
from bench.peers import TUNED, table
from bench.push import built_and_pushed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.peers import Peer
    from bench.stage import Stage

PEER = f"docker {TUNED.name}"


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """Ours in both forms, and the peers whose image holds bytecode as ours does."""
    with table.dockers(stage, TUNED) as (docker,), table.buildahs(stage, TUNED) as (buildah,):
        yield (
            Contestant(name=OURS, what="build --compression zstd", play=partial(mine, stage, "zstd")),
            Contestant(name=f"{OURS}, gzip", what="streams of the wheels", play=partial(mine, stage, "gzip")),
            Contestant(name=docker.name, what=docker.what, play=partial(theirs, stage, docker, "")),
            Contestant(name="buildah zstd", what="buildah push, zstd", play=partial(theirs, stage, buildah, "zstd")),
        )


def mine(stage: Stage, compression: str) -> Figures:
    """Build and push; what a puller fetches."""
    with ours.fresh(stage) as kiln, services.registry(stage.work) as registry:
        began = time.monotonic()
        kiln.build(stage.row, "--compression", compression, push=f"{registry.address}/bench:ours")
        return {"bytes": registry.image("bench:ours"), "seconds": time.monotonic() - began}


def theirs(stage: Stage, peer: Peer, compression: str) -> Figures:
    """The same of a peer."""
    with services.registry(stage.work) as registry:
        try:
            figures = built_and_pushed(peer, stage.work, stage.row, registry, compression=compression)
            return {"bytes": registry.image("bench:peer"), "seconds": figures["seconds"]}
        finally:
            peer.forget()


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return share("compressed size against Docker's gzip layers", found, theirs=[PEER], limit=0.8)


BENCH = Bench(
    name="zstd",
    title="zstd: compressed size of the image",
    about="Bytes of all layers, as a puller fetches them; with bytecode in all of them.",
    columns=(
        Column(figure="bytes", heading="layers", unit="MB"),
        Column(figure="seconds", heading="build and push"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=260, disk=5),
    once=True,
)
