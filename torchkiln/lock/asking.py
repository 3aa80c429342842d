"""How a part of a lock is asked for: of the indexes through uv, or of the facts in place of the PyTorch index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torchkiln.errors import LockError
from torchkiln.lock import fit, index, known, resolve
from torchkiln.matrix import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchkiln.lock.lockfile import Inputs, Pin
    from torchkiln.matrix.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a resolver answers."""

    pins: tuple[Pin, ...]
    sources: Mapping[str, str]
    """By package, whose word a hash is, where it isn't that of the index that was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How parts are asked for."""

    ask: Callable[[Inputs, Target, Sequence[Pin], Sequence[Pin]], Chosen]
    """Inputs, row, pins to keep to, pins to prefer, the first of a name counting."""
    resolver: str
    upgrade: bool = False


def of(environment: Mapping[str, str], *, upgrade: bool = False, from_facts: bool = False) -> Asking:
    """Ask the indexes through uv; or take the PyTorch index as the facts know it, which is never done unasked."""
    return Asking(ask=partial(_ask, environment, from_facts), resolver=index.resolver(), upgrade=upgrade)


def _ask(  # noqa: PLR0917  the last four are what Asking.ask is called with
    environment: Mapping[str, str],
    from_facts: bool,  # noqa: FBT001  bound by partial
    asked: Inputs,
    row: Target,
    above: Sequence[Pin],
    preferred: Sequence[Pin],
) -> Chosen:
    preferences = {pin.name: pin.version for pin in reversed(preferred)}
    try:
        return _answer(environment, asked, row, fit.constraints(above), preferences, from_facts=from_facts)
    except LockError as error:
        taken_back = [name for name, version in preferences.items() if f"`{name}=={version}` is yanked" in error.what]
        if not taken_back:
            raise
        left = {name: version for name, version in preferences.items() if name not in taken_back}
        return _answer(environment, asked, row, fit.constraints(above), left, from_facts=from_facts)


def _answer(
    environment: Mapping[str, str],
    asked: Inputs,
    row: Target,
    constraints: Sequence[str],
    preferences: Mapping[str, str],
    *,
    from_facts: bool,
) -> Chosen:
    if from_facts:
        stated = facts.read()
        found = known.wheels(asked, row, environment, stated, constraints=constraints, preferences=preferences)
        return Chosen(pins=found.pins, sources=found.sources)
    pins = resolve.wheels(asked, row, environment, constraints=constraints, preferences=preferences)
    return Chosen(pins=pins, sources={})
