"""`./inv load` and `./inv shell`: built images in an engine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import ENGINE, EXTRA, MADE_FOR, TARGET
from torchkiln.commands.output import show
from torchkiln.commands.selection import made_for, one_row, rows
from torchkiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context


@task(
    positional=[],
    iterable=["target", "tag"],
    help=TARGET | EXTRA | MADE_FOR | {"tag": "name in the engine; default torchkiln/TARGET"},
)
@guarded
def load(
    _: Context,
    target: Sequence[str],
    tag: Sequence[str],
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Put built images into a Docker engine (20.10 or newer)."""
    from torchkiln import finished
    from torchkiln.engines import names
    from torchkiln.engines.docker import Docker

    work, chosen = checkout.project(), made_for(rows(target, extra=extra_requirements), for_, compression)
    tag = [names.whole(name) for name in tag]
    if tag and len(chosen) > 1:
        raise UsageError(
            f"one name for {len(chosen)} images", where=" ".join(tag), remedy=f"--target {chosen[0].id} --tag {tag[0]}"
        )
    for row in chosen:
        with finished.subject(work, row) as subject:
            tags = tuple(tag) or (f"torchkiln/{row.ref}:latest",)
            Docker(subject.store).load(subject.image, tags)
        show("\n".join(tags))


@task(
    positional=[],
    iterable=["target"],
    help=TARGET
    | ENGINE
    | EXTRA
    | MADE_FOR
    | {
        "user": "uid:gid instead of the image's",
        "command": "words of a program to run instead of bash, without a shell",
    },
)
@guarded
def shell(
    _: Context,
    target: Sequence[str],
    engine: str = "auto",
    user: str = "",
    command: str = "",
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Open a shell in a built image; what it writes is gone afterwards."""
    from torchkiln import finished, pipeline
    from torchkiln.engines import Command, Limits

    work = checkout.project()
    with finished.subject(work, one_row(target, extra_requirements, for_, compression)) as subject:
        argv = tuple(shlex.split(command)) or ("bash",)
        runner = pipeline.engine(work, engine)
        asked = Command(
            argv=argv,
            user=user,
            network=True,
            gpus="gpu" not in runner.restrictions() and bool(subject.image.config.env.get("NVIDIA_VISIBLE_DEVICES")),
            limits=Limits(shm_bytes=2 << 30),
        )
        raise SystemExit(runner.shell(subject.image, asked))
