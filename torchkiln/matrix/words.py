"""An id → its words by what each is, checked against those that there are; pure."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from torchkiln.errors import UnknownTargetError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Vocabulary = Mapping[str, Collection[str]]
    """By kind, the words that name something."""

FORM = "an id is <release>-<accelerator>[-<gpu>][-<flavour>][-<base>][-<arch>][-with-<extra>], such as torch25-cu124"
ORDER = ("release", "accelerator", "gpu", "flavour", "base", "arch", "extra")
OPTIONAL = ORDER[2:-1]
"""What may follow, known by the words themselves: they are unique over these kinds."""
SOME = "GPU, flavour, base or architecture"
"""The kind of an optional word that is none of them."""


def read(identifier: str, own: Vocabulary, known: Vocabulary) -> dict[str, str]:
    """The words of an id by kind.

    UnknownTargetError names every word that is neither of the family's own nor known, with the nearest, the own ones
    first; UsageError says what is no id, or is in the wrong order.
    """
    parted = _parted(identifier, {kind: {*own[kind], *known.get(kind, ())} for kind in ORDER})
    legal = {kind: sorted({*own[kind], *known.get(kind, ())}) for kind in ORDER}
    legal[SOME] = sorted(word for kind in OPTIONAL for word in legal[kind])
    if unknown := [(kind, word) for kind, word in parted if word not in legal[kind] or kind == SOME]:
        raise _unknown(identifier, unknown, own, legal)
    _hold_order(identifier, parted)
    return dict(parted)


def _parted(identifier: str, legal: Vocabulary) -> list[tuple[str, str]]:
    named, _, extra = identifier.partition("-with-")
    words = named.split("-")
    if len(words) == 1 or not re.fullmatch(r"[a-z0-9-]+", identifier) or "" in words:
        raise UsageError(f"{identifier!r} is no id", remedy=FORM)
    optional = [(next((kind for kind in OPTIONAL if word in legal[kind]), SOME), word) for word in words[2:]]
    return [("release", words[0]), ("accelerator", words[1]), *optional, *([("extra", extra)] if extra else [])]


def _hold_order(identifier: str, parted: Sequence[tuple[str, str]]) -> None:
    kinds = [kind for kind, _ in parted]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), ""):
        both = " and ".join(word for kind, word in parted if kind == twice)
        raise UsageError(f"{identifier} names two of a kind ({twice}): {both}", remedy=FORM)
    if kinds != sorted(kinds, key=ORDER.index):
        right = sorted(parted, key=lambda one: ORDER.index(one[0]))
        raise UsageError(f"{identifier}: the parts of an id have an order", where=FORM, remedy=_joined(right))


def _unknown(
    identifier: str, unknown: Sequence[tuple[str, str]], own: Vocabulary, legal: Mapping[str, Sequence[str]]
) -> UnknownTargetError:
    own = {**own, SOME: [word for kind in OPTIONAL for word in own[kind]]}
    near = {word: _near(word, own[kind]) or _near(word, legal[kind]) for kind, word in unknown}
    told = (
        f"no {kind} is called {word!r}" + ("" if near[word] else f" (there are {', '.join(legal[kind]) or 'none'})")
        for kind, word in unknown
    )
    meant = "-".join(near.get(word, word) for word in identifier.split("-")) if all(near.values()) else FORM
    where = "matrix.yaml and torchkiln/matrix/facts.yaml"
    return UnknownTargetError(f"{identifier}: {'; '.join(told)}", where=where, remedy=meant)


def _near(word: str, among: Collection[str]) -> str:
    return next(iter(get_close_matches(word, sorted(among), n=1, cutoff=0.5)), "")


def _joined(parted: Sequence[tuple[str, str]]) -> str:
    return "-".join(f"with-{word}" if kind == "extra" else word for kind, word in parted)
