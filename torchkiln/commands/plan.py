"""`./inv plan`: what an image would be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import EXTRA, JSON, MADE_FOR, TARGET
from torchkiln.commands.output import show
from torchkiln.commands.selection import caution, made_for, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context


@task(
    positional=[],
    iterable=["target"],
    help=TARGET
    | EXTRA
    | JSON
    | MADE_FOR
    | {"sharing": "bytes of each row, what no other row of the matrix has, and all with each layer counted once"},
)
@guarded
def plan(
    _: Context,
    target: Sequence[str],
    extra_requirements: str = "",
    sharing: bool = False,
    json: bool = False,
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Show what an image would be made of, what that weighs, and which rows share it, without building."""
    from torchkiln import planning
    from torchkiln import sharing as shares
    from torchkiln.matrix import facts
    from torchkiln.report import layers

    known = facts.read()
    family = checkout.family(known)
    chosen = rows(target, family, extra_requirements)
    for row in chosen:
        caution(row)
    every = {row.id: row for row in made_for((*family.targets, *chosen), for_, compression, family)}
    ids = [row.id for row in chosen]
    found = planning.family(checkout.project(), tuple(every.values()), known, ids)
    found = found.only(ids) if sharing else found
    missing = [found.left_out[row.id] for row in chosen if row.id in found.left_out]
    if missing and not (sharing and found.plans):
        raise missing[0]
    if json:
        show(shares.to_json_of(found) if sharing else [shares.plan_json(found, row.id) for row in chosen])
    elif sharing:
        show(layers.family(found))
        show(layers.family_said(found))
    for row in () if json or sharing else chosen:
        show(layers.plan(found, row.id))
        show(layers.said(found, row.id))
