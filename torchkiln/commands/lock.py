"""`./inv lock`: images/locks/, written, printed or checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import EXTRA, TARGET, hold_apart
from torchkiln.commands.output import show
from torchkiln.commands.selection import one_row, rows, selected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context


@task(
    positional=[],
    iterable=["target"],
    help=TARGET
    | EXTRA
    | {
        "base": "write what the row's base holds too (runs mmdebstrap, pulls or has Docker build)",
        "check": "change nothing, ask nobody: do the locks fit the rows, layers.lock too? Without --target, of all",
        "upgrade": "take the newest of what the rows allow, instead of what is pinned; the trio stays",
        "markdown": "print what changed as Markdown, for a pull request",
        "from_facts": "take the PyTorch index as torchkiln/matrix/facts.yaml knows it, where it can't be reached",
        "requirements": "print what one row uses of its locks, as pip and uv install it, and write nothing",
        "layers": "build the rows as they are locked, and note in layers.lock what their layers are",
    },
)
@guarded
def lock(
    _: Context,
    target: Sequence[str],
    extra_requirements: str = "",
    base: bool = False,
    check: bool = False,
    upgrade: bool = False,
    markdown: bool = False,
    from_facts: bool = False,
    requirements: bool = False,
    layers: bool = False,
) -> None:
    """Write images/locks/ for the rows, keeping to what is pinned where it still will do; or check them."""
    from torchkiln import layerlocking, locking
    from torchkiln.layers import boundarylock
    from torchkiln.lock import audit, difference, layeraudit
    from torchkiln.lock import rows as locks

    writing = {"--base": base, "--upgrade": upgrade, "--markdown": markdown, "--from-facts": from_facts}
    hold_apart({"--check": check}, {"--requirements": requirements}, {"--layers": layers}, writing)
    family = checkout.family()
    if check:
        chosen = selected(family, target, extra_requirements)
        boundarylock.read(checkout.project().boundary_lock)
        layers_found = layerlocking.audit_layers(checkout.project(), (*family.targets, *chosen))
        found = audit.audit(checkout.LOCKS, family.targets, chosen, orphans=not target)
        show(audit.plain(found))
        audit.refuse(found)
        layeraudit.refuse(layers_found, [row.id for row in chosen] if target else None)
    elif requirements:
        show(locks.text(checkout.LOCKS, one_row(target, extra_requirements)).removesuffix("\n"))
    elif layers:
        made = layerlocking.lock_layers(checkout.project(), rows(target, family, extra_requirements))
        show("\n".join(sorted(layer.title for layer in made.values())) or "nothing new")
    else:
        chosen, options = rows(target, family, extra_requirements), {"upgrade": upgrade, "from_facts": from_facts}
        written = locking.relock(checkout.project(), chosen, every=family.targets, bases=base, **options)
        if written.changed:
            show(difference.markdown(written.changed) if markdown else difference.plain(written.changed))
        written.refuse()
