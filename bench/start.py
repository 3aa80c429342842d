"""What a user waits for: importing torch in the image, and the first compiled call."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench import ours, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, share
from bench.peers import PLAIN, TUNED, table
from bench.stage import context
from torchkiln.matrix.target import TRIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.peers.docker import Docker
    from bench.stage import Stage

SCRIPT = """\
import importlib, json, time
began = time.perf_counter()
for name in {modules}: importlib.import_module(name)
imported = time.perf_counter()
import torch
torch.compile(lambda x: x * x + torch.sin(x))(torch.ones(1000))
called = time.perf_counter()
print(json.dumps(dict(seconds=imported - began, compiled=called - imported, both=called - began)))
"""
WITHOUT, WITH = f"docker {PLAIN.name}", f"docker {TUNED.name}"


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """All images in one engine; each is run once before the clock, so that files are in memory for all."""
    with table.dockers(stage) as peers:
        engine = peers[0]
        mine = pulled(stage, engine)
        wheels = context(stage.row, stage.work / "context")
        for peer in peers:
            peer.build(wheels, base=table.base(stage.row), tag=peer.recipe.name)
        images = (
            (OURS, mine, "as it is pulled"),
            (WITHOUT, PLAIN.name, "uv's image without bytecode"),
            (WITH, TUNED.name, "uv's image with bytecode"),
        )
        found = [
            Contestant(name=name, what=what, play=partial(started, stage, engine, image))
            for name, image, what in images
        ]
        for one in found:
            one.play()
        yield found


def pulled(stage: Stage, engine: Docker) -> str:
    """Ours in the engine, as a user gets it there; its name."""
    with services.registry(stage.work) as registry:
        name = f"{registry.address}/bench:ours"
        with ours.fresh(stage) as kiln:
            kiln.build(stage.row, push=name)
        engine.pull(name)
    return name


def modules(stage: Stage) -> list[str]:
    """The trio, as far as the row has it."""
    return [name for name in TRIO if any(pin.name == name for pin in stage.row.pins)]


def started(stage: Stage, engine: Docker, image: str) -> Figures:
    """Seconds in a new container, told from within, so that starting it does not count."""
    figures = json.loads(engine.python(image, "-c", SCRIPT.format(modules=modules(stage))).splitlines()[-1])
    return {name: float(value) for name, value in figures.items()}


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return (
        *share("import, against an image without bytecode", found, theirs=[WITHOUT], limit=0.45, figure="seconds"),
        *share("import and first call, without bytecode", found, theirs=[WITHOUT], limit=0.45, figure="both"),
        *share("import, against an image with bytecode", found, theirs=[WITH], limit=1, figure="seconds"),
        *share("import and first call, with bytecode", found, theirs=[WITH], limit=1, figure="both"),
    )


BENCH = Bench(
    name="start",
    title="Start: import of the trio, and the first compiled call",
    about="In a new container of each image, with files in the page cache; no compile cache.",
    columns=(
        Column(figure="seconds", heading="import"),
        Column(figure="compiled", heading="first compiled call"),
        Column(figure="both", heading="both"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=100, disk=7),
)
