"""Which peers there are, all of them ready: with uv, with the rows' bases, and with nothing built yet."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from uv import find_uv_bin

from bench.apt import install
from bench.peers import RECIPES, buildah, docker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bench.peers import Peer, Recipe
    from bench.peers.buildah import Buildah
    from bench.peers.docker import Docker
    from bench.stage import Row, Stage


@contextmanager
def dockers(stage: Stage, *recipes: Recipe) -> Iterator[tuple[Docker, ...]]:
    """BuildKit, once for each recipe; they share an engine."""
    install("dockerd", "docker.io")
    with docker.running(stage.work, uv(stage.work), *(recipes or RECIPES)) as peers:
        load(stage, peers[:1])
        yield peers


@contextmanager
def buildahs(stage: Stage, *recipes: Recipe) -> Iterator[tuple[Buildah, ...]]:
    """buildah, once for each recipe; they share a storage."""
    install("buildah", "buildah")
    with buildah.running(stage.work, uv(stage.work), *(recipes or RECIPES)) as peers:
        load(stage, peers[:1])
        yield peers


@contextmanager
def everybody(stage: Stage) -> Iterator[tuple[Peer, ...]]:
    """Both kinds, as people write it and tuned."""
    with ExitStack() as stack:
        yield (*stack.enter_context(dockers(stage)), *stack.enter_context(buildahs(stage)))


def uv(work: Path) -> Path:
    """The pinned uv that we resolve with, alone in a folder."""
    place = work / "uv" / "uv"
    place.parent.mkdir(exist_ok=True)
    if not place.exists():
        shutil.copy(find_uv_bin(), place)
    return place


def load(stage: Stage, peers: Sequence[Peer]) -> None:
    """Our bases, so that nobody's is smaller."""
    for row in {base(row): row for row in stage.rows}.values():
        for peer in peers:
            peer.load(base(row), stage.project.store.path(row.base.descriptor.digest))


def base(row: Row) -> str:
    """What a row's base is called."""
    return f"localhost/bench/base-{row.target.base.id}"
