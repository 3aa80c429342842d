"""A security update of the base: every row is rebuilt on it and pushed."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench import ours, patched, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.family import ROWS
from bench.figures import OURS, Figures, Measured, Verdict, share, times
from bench.peers import PLAIN, table
from bench.push import built_and_pushed
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.ours import Kiln
    from bench.peers import Peer
    from bench.stage import Row, Stage

PEER = f"docker {PLAIN.name}"


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """Ours and the peer as people write it; an update leaves it nothing to reuse, however its Dockerfile is split."""
    with table.dockers(stage, PLAIN) as (peer,):
        yield (
            Contestant(name=OURS, what="a new base layer, build --push for each row", play=partial(mine, stage)),
            Contestant(name=peer.name, what=peer.what, play=partial(theirs, stage, peer)),
        )


def mine(stage: Stage) -> Figures:
    """Every row built and pushed, the bases updated, and again with the clock."""
    with ours.fresh(stage) as kiln, services.registry(stage.work) as registry:
        for row in stage.rows:
            kiln.build(row, push=f"{registry.address}/bench:{row.target.id}")
        for row in {row.base_key: row for row in stage.rows}.values():
            update(stage, row, kiln)
        before, began = registry.size, time.monotonic()
        for row in stage.rows:
            kiln.build(row, push=f"{registry.address}/bench:{row.target.id}-new")
        return {"seconds": time.monotonic() - began, "bytes": registry.size - before}


def update(stage: Stage, row: Row, kiln: Kiln) -> None:
    """Have the new base in the cache, under the key that it has when its lock names another version."""
    store, place = Store(kiln.home.store), kiln.home.temporary / "base"
    layer = patched.base(row.base, stage.project.store.path(row.base.descriptor.digest), place)
    place.rename(store.path(layer.descriptor.digest))
    path = kiln.root / "images" / "locks" / row.target.base_lock_name
    line = path.read_text().splitlines()[-1]
    ours.edit(path, f"\n{line}\n", f"\n{line}+bench1\n")
    packages = [one.split("=", 1) for one in path.read_text().splitlines() if not one.startswith("#")]
    entry = {**layer.to_json(), "packages": packages}
    kiln.home.record(kiln.base_key(row), entry)


def theirs(stage: Stage, peer: Peer) -> Figures:
    """Every row built on its base and pushed, each into a registry of its own that has the base; then forgotten.

    Rows share nothing but the base, so one registry with all of them would hold the same bytes, and not fit the disk.
    """
    total: Figures = {"seconds": 0.0, "build": 0.0, "push": 0.0, "bytes": 0.0}
    bases = set[str]()
    for row in stage.rows:
        with services.registry(stage.work) as registry:
            try:
                peer.push(table.base(row), f"{registry.address}/bench:base")
                before = 0 if table.base(row) in bases else registry.size
                shared = registry.size
                figures = built_and_pushed(peer, stage.work, row, registry)
            finally:
                peer.forget()
        bases.add(table.base(row))
        figures["bytes"] += before - shared
        total = {name: total[name] + figures[name] for name in total}
    return total


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return (
        *times("faster than the peer", found, theirs=[PEER], limit=40),
        *share("bytes that go to the registry", found, theirs=[PEER], limit=0.1),
    )


BENCH = Bench(
    name="patch_day",
    title="Patch day: a security update of the base, all rows rebuilt and pushed",
    about="One library of the base changes. Both sides are given the new base; nobody's clock runs while it is made.",
    columns=(
        Column(figure="seconds", heading="all rows"),
        Column(figure="bytes", heading="to the registry", unit="GB"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=130, disk=2.1),
    rows=ROWS,
    once=True,
)
