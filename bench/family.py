"""A family of rows in one registry: what they share is stored once, and made once."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench import ours, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, share
from bench.peers import PLAIN, table
from bench.push import built_and_pushed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.peers import Peer
    from bench.stage import Stage

ROWS = (
    "torch213-cu130",
    "torch214-cu130",
    "torch215-cu132",
    "torch213-cu130-trixie",
    "torch214-cu130-trixie",
    "torch215-cu132-trixie",
)
"""Three releases on Python 3.11 and 3.13, two of them of one CUDA: the newest such family that an index has whole."""
FLAVOURS = ("torch213-cu130", "torch213-cu130-devel", "torch213-cu130-hopper")
"""Of one release and accelerator: as it is, with the toolkit, and for one GPU."""
PEER, APART = f"docker {PLAIN.name}", f"{OURS}, each row by itself"


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """Ours together, ours apart, and one peer."""
    with table.dockers(stage, PLAIN) as (peer,):
        yield (
            Contestant(name=OURS, what="one cache, one registry, build --push row by row", play=partial(mine, stage)),
            Contestant(name=APART, what="an empty cache and registry for each", play=partial(apart, stage)),
            Contestant(name=peer.name, what=peer.what, play=partial(theirs, stage, peer)),
        )


def mine(stage: Stage) -> Figures:
    """Every row into one registry."""
    with ours.fresh(stage) as kiln, services.registry(stage.work) as registry:
        began = time.monotonic()
        for row in stage.rows:
            kiln.build(row, push=f"{registry.address}/bench:{row.target.id}")
        return {"seconds": time.monotonic() - began, "bytes": registry.size}


def apart(stage: Stage) -> Figures:
    """The sum of single builds, that know nothing of each other."""
    each = [mine(replace(stage, rows=(row,))) for row in stage.rows]
    return {name: sum(one[name] for one in each) for name in ("seconds", "bytes")}


def theirs(stage: Stage, peer: Peer) -> Figures:
    """Every row into one registry; the engine forgets each before the next, or the disk would not hold them."""
    total = {"seconds": 0.0, "bytes": 0.0}
    with services.registry(stage.work) as registry:
        for row in stage.rows:
            try:
                figures = built_and_pushed(peer, stage.work, row, registry, tag=row.target.id)
            finally:
                peer.forget()
            total = {"seconds": total["seconds"] + figures["seconds"], "bytes": figures["bytes"]}
    return total


def wanted(limit: float, found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return (
        *share("bytes in the registry", found, theirs=[PEER], limit=limit),
        *share("time of the same builds, each by itself", found, theirs=[APART], limit=0.6, figure="seconds"),
    )


BENCH = Bench(
    name="family",
    title="Family: three releases, each on two Pythons, in one registry",
    about="Row after row, each pushed as it is built.",
    columns=(
        Column(figure="bytes", heading="in the registry", unit="GB"),
        Column(figure="seconds", heading="all rows"),
    ),
    contestants=contestants,
    wanted=partial(wanted, 0.6),
    cost=Cost(seconds=150, disk=2.3),
    rows=ROWS,
    once=True,
)
FLAVOUR_BENCH = replace(
    BENCH,
    name="flavours",
    title="Flavours: three of one row in one registry",
    about="The row as it is, with the CUDA toolkit, and for one GPU.",
    wanted=partial(wanted, 0.4),
    cost=Cost(seconds=300, disk=6),  # a peer stores each flavour anew
    rows=FLAVOURS,
)
