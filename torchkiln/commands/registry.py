"""`./inv push`, `./inv pull` and `./inv copy`: images to registries, from them and between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import EXTRA, JSON, MADE_FOR, PLAIN, TARGET, WHOLE
from torchkiln.commands.output import show
from torchkiln.commands.selection import one_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context


@task(
    positional=["to"],
    iterable=["target", "plain_http"],
    help={"to": "HOST/REPOSITORY[:TAG]"} | TARGET | EXTRA | MADE_FOR | PLAIN | WHOLE | JSON,
)
@guarded
def push(
    _: Context,
    to: str,
    target: Sequence[str],
    plain_http: Sequence[str],
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
    verify: bool = False,
    json: bool = False,
) -> None:
    """Put a built image into a registry, its tag last; what is there already isn't sent."""
    from torchkiln import transfer

    row = one_row(target, extra_requirements, for_, compression)
    sent = transfer.push(checkout.project(), row, to, plain=plain_http, whole=verify)
    show(sent.to_json() if json else str(sent))


@task(
    positional=["source"],
    iterable=["plain_http"],
    help={"source": "HOST/REPOSITORY[:TAG] or HOST/REPOSITORY@sha256:…", "name": "instead of the target that it states"}
    | PLAIN
    | JSON,
)
@guarded
def pull(_: Context, source: str, plain_http: Sequence[str], name: str = "", json: bool = False) -> None:
    """Fetch an image that was pushed, as if it had been built here: for validate, shell, load, verify."""
    from torchkiln import transfer

    got = transfer.pull(checkout.project(), source, name=name, plain=plain_http)
    show(got.to_json() if json else f"{got.name} {got.digest}")


@task(
    positional=["source", "to"],
    iterable=["plain_http"],
    help={"source": "HOST/REPOSITORY[:TAG] or HOST/REPOSITORY@sha256:…", "to": "HOST/REPOSITORY[:TAG]"}
    | PLAIN
    | WHOLE
    | JSON,
)
@guarded
def copy(_: Context, source: str, to: str, plain_http: Sequence[str], verify: bool = False, json: bool = False) -> None:
    """Put an image of one registry into another, byte for byte, through this machine but not onto its disk."""
    from torchkiln import transfer

    sent = transfer.copy(checkout.project(), source, to, plain=plain_http, whole=verify)
    show(sent.to_json() if json else str(sent))
