"""From a registry to a prompt: pull, unpack and the first import."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from bench import ours, services
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, share
from bench.peers import PLAIN, TUNED, table
from bench.peers.docker import Docker
from bench.push import built_and_pushed
from bench.start import modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.services import Registry
    from bench.stage import Stage

WITHOUT, WITH = f"docker {PLAIN.name}", f"docker {TUNED.name}"
SANDBOX = f"{OURS}, sandbox"


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """Every image in one registry; then an engine that has none of them, nor the base."""
    with services.registry(stage.work) as registry:
        with ours.fresh(stage) as kiln:
            kiln.build(stage.row, push=f"{registry.address}/bench:ours")
        with table.dockers(stage) as peers:
            for peer in peers:
                built_and_pushed(peer, stage.work, stage.row, registry, tag=peer.recipe.name)
                peer.forget()
        with services.engine(stage.work) as engine:
            docker = Docker(recipe=PLAIN, client=engine.client, pid=engine.pid)
            told = "docker pull, then import in a new container"
            pulled = {
                name: partial(by_docker, stage, docker, f"{registry.address}/bench:{tag}")
                for name, tag in ((OURS, "ours"), (WITHOUT, PLAIN.name), (WITH, TUNED.name))
            }
            yield (
                *(Contestant(name=name, what=told, play=play) for name, play in pulled.items()),
                Contestant(
                    name=SANDBOX,
                    what="./inv pull into an empty cache, then import in the sandbox",
                    play=partial(by_sandbox, stage, registry),
                ),
            )


def by_docker(stage: Stage, docker: Docker, image: str) -> Figures:
    """Seconds of docker pull, and of the first import; the engine has nothing before and after."""
    try:
        began = time.monotonic()
        docker.pull(image)
        pulled = time.monotonic()
        docker.python(image, "-c", importing(stage))
        ended = time.monotonic()
    finally:
        docker.forget()
    return {"seconds": ended - began, "pull": pulled - began, "run": ended - pulled}


def by_sandbox(stage: Stage, registry: Registry) -> Figures:
    """The same without any daemon."""
    with ours.fresh(stage, empty=True) as kiln:
        began = time.monotonic()
        kiln.run("pull", f"{registry.address}/bench:ours")
        pulled = time.monotonic()
        command = f"python -c '{importing(stage)}'"
        kiln.run("shell", "--target", stage.row.target.id, "--engine", "sandbox", "--command", command)
        ended = time.monotonic()
    return {"seconds": ended - began, "pull": pulled - began, "run": ended - pulled}


def importing(stage: Stage) -> str:
    """The first thing that anybody does in such an image."""
    return f"import {', '.join(modules(stage))}"


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    theirs = (WITHOUT, WITH)
    return (
        *share("docker pull and import", found, theirs=theirs, limit=1, figure="seconds"),
        *share(
            "sandbox, against docker and their image", found, theirs=theirs, limit=1, figure="seconds", ours=SANDBOX
        ),
    )


BENCH = Bench(
    name="pull",
    title="Pull: from a registry to the first import",
    about="The registry is on loopback; neither engine nor cache has any layer.",
    columns=(
        Column(figure="seconds", heading="all"),
        Column(figure="pull", heading="pull"),
        Column(figure="run", heading="start and import"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=220, disk=6),
)
