"""Whether the package list of a userland was made from what its row asks mmdebstrap for; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.errors import StaleLockError
from torchkiln.lock import baselock, fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchkiln.lock.baselock import Asks, BaseLock
    from torchkiln.matrix.target import Base, Target


def asked(base: Base, machine: str) -> Asks:
    """What decides the packages, in words.

    Where they are had and whose keys are believed is a machine's own matter.
    """
    return (
        ("kind", base.kind),
        ("suite", base.suite),
        ("components", " ".join(base.components)),
        ("packages", " ".join(sorted(set(base.packages)))),
        ("python", base.python),
        ("arch", machine),
    )


def command(target: Target) -> str:
    """What writes the list of what a row's base holds, and the row's lock where that is needed."""
    return f"{fit.command(target)} --base"


def check_fresh(lock: BaseLock, target: Target, where: str) -> None:
    """StaleLockError, saying what changed, if a userland's list was made from other inputs than the row has now."""
    wanted = asked(target.base, target.arch)
    if target.base.kind == "debian" and lock.inputs != baselock.checksum(wanted):
        what = f"{target.base_lock_name} is stale: {'; '.join(_changes(lock, wanted))}"
        raise StaleLockError(what, where=where, remedy=command(target))


def _changes(lock: BaseLock, wanted: Asks) -> Iterator[str]:
    """At least one."""
    if not lock.inputs or not lock.asked:
        yield "it does not say what was asked for"
    elif lock.asked == wanted:
        yield "its heading was edited by hand"
    before = dict(lock.asked)
    for word, now in wanted if before else ():
        if before.get(word, "") != now:
            yield f"{word}: {_change(before.get(word, '').split(), now.split())}"


def _change(before: Sequence[str], after: Sequence[str]) -> str:
    """One word for another, or what came to a list and what left it."""
    came = [f"+ {one}" for one in after if one not in before]
    left = [f"- {one}" for one in before if one not in after]
    if len(before) == len(after) == 1 or not came + left:
        return f"{' '.join(before)} → {' '.join(after)}"
    return ", ".join(came + left)
