"""An id → its words by what each is, checked against those that there are; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice, product
from typing import TYPE_CHECKING

from torchkiln.errors import UnknownTargetError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from torchkiln.errors import TorchkilnError

    Vocabulary = Mapping[str, Collection[str]]
    """By kind, the words that name something."""
    Offer = Callable[[Iterable[Mapping[str, str]]], str]
    """Words by kind, best first → an id that works, and is near the first of them; empty if there is none."""

FORM = (
    "an id is <release>-<accelerator>[-<gpu>][-<flavour>][-<base>][-<arch>][-with-<extra>], such as torch25-cu124;"
    " ./inv matrix lists every row"
)
WHERE = "matrix.yaml (./inv matrix lists its rows) and torchkiln/matrix/facts.yaml"
ORDER = ("release", "accelerator", "gpu", "flavour", "base", "arch", "extra")
HEAD, OPTIONAL = ORDER[:2], ORDER[2:-1]
"""What every id has, and what may follow; known by the words themselves, wherever they stand."""
SOME = "GPU, flavour, base or architecture"
"""The kind of an optional word that is none of them."""
FEW = 8
"""So many words of a kind are listed where none is near."""
TRIES = 40
"""So many ids that may be meant are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What parts of ids may be called."""

    own: Vocabulary
    """What the family declares."""
    known: Vocabulary
    """What only the facts know."""
    archs: Mapping[str, Sequence[str]]
    """GPUs by architecture, without dashes: ids have names for them."""

    def legal(self, kind: str) -> list[str]:
        """Every word of a kind."""
        kinds = OPTIONAL if kind == SOME else (kind,)
        return sorted({word for one in kinds for word in (*self.own[one], *self.known.get(one, ()))})

    def kind(self, word: str, among: Sequence[str] = ORDER[:-1]) -> str:
        """What a word names; empty if nothing."""
        return next((kind for kind in among if word in self.own[kind] or word in self.known.get(kind, ())), "")

    def near(self, kind: str, word: str) -> list[str]:
        """Words of a kind that may be meant: the GPUs of an architecture, then what is spelt alike, own ones first."""
        own = [one for part in (OPTIONAL if kind == SOME else (kind,)) for one in self.own[part]]
        alike = [*_alike(word, own), *_alike(word, self.legal(kind))]
        return list(dict.fromkeys(self.archs.get(word, ()) if kind == SOME and word in self.archs else alike))


def _alike(word: str, among: Collection[str]) -> list[str]:
    return get_close_matches(word, sorted(among), n=8, cutoff=0.5)


def read(identifier: str, words: Words, offer: Offer) -> dict[str, str]:
    """The words of an id by kind.

    UnknownTargetError names every word that names nothing, with what was probably meant and works; UsageError says what
    is no id, or is in the wrong order.
    """
    parted = _parted(identifier, words)
    if wrong := _wrong(identifier, parted, words):
        wrong.remedy = wrong.remedy or offer(islice(_meant(parted, words), TRIES)) or FORM
        raise wrong
    return dict(parted)


def _wrong(identifier: str, parted: Sequence[tuple[str, str]], words: Words) -> TorchkilnError | None:
    """What is wrong with an id, if anything."""
    if (spelt := _spelling(identifier)) != identifier:
        return UsageError(f"{identifier!r} is no id: {_why(identifier)}", where=FORM)
    if unknown := [(kind, word) for kind, word in parted if _missing(kind, word, words)]:
        told = "; ".join(_told(kind, word, words) for kind, word in unknown)
        return UnknownTargetError(f"{spelt}: {told}", where=WHERE)
    kinds = [kind for kind, _ in parted]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), ""):
        both = " and ".join(word for kind, word in parted if kind == twice)
        return UsageError(f"{identifier} names two of a kind ({twice}): {both}", remedy=FORM)
    if kinds != sorted(kinds, key=ORDER.index):
        return UsageError(f"{identifier}: the parts of an id have an order", where=FORM)
    return None


def _spelling(identifier: str) -> str:
    """An id in the letters that ids have: x8664 for x86_64, torch25 for torch2.5; 2.1.0 is 2.1, and not 2.10."""
    return re.sub(r"[._]", "", re.sub(r"^(torch\d+\.\d+)\.0(?=-)", r"\1", identifier.lower()))


def _why(identifier: str) -> str:
    if "x86_64" in identifier.lower():
        return "x86_64 is spelt x8664, and may be left out"
    return "ids are in lower case" if identifier != identifier.lower() else "ids have neither dots nor underscores"


def _parted(identifier: str, words: Words) -> list[tuple[str, str]]:
    """Every word with its kind: that of its place or its name; unknown ones are what is missing, then optional."""
    named, _, extra = _spelling(identifier).partition("-with-")
    parts = named.split("-")
    alone = len(parts) == 1 and not words.kind(named)
    if alone or not re.fullmatch(r"[a-z0-9-]+", _spelling(identifier)) or "" in parts:
        raise UsageError(f"{identifier!r} is no id", remedy=FORM)
    kinds = [words.kind(word, (*HEAD[place : place + 1], *ORDER[:-1])) for place, word in enumerate(parts)]
    lacking = iter([kind for kind in HEAD if kind not in kinds])
    kinds = [kind or next(lacking, SOME) for kind in kinds]
    if lost := next(lacking, ""):
        raise UsageError(f"{identifier} names no {lost}", remedy=FORM)
    return [*zip(kinds, parts, strict=True), *([("extra", extra)] if extra else [])]


def _missing(kind: str, word: str, words: Words) -> bool:
    return kind == SOME or not words.kind(word, (kind,))


def _meant(parted: Sequence[tuple[str, str]], words: Words) -> Iterator[Mapping[str, str]]:
    """What an id may mean, best first: unknown words replaced by near ones."""
    near = [words.near(kind, word) if _missing(kind, word, words) else [word] for kind, word in parted]
    for choice in product(*near):
        kinds = [
            words.kind(word, OPTIONAL) if kind == SOME else kind for (kind, _), word in zip(parted, choice, strict=True)
        ]
        if len(set(kinds)) == len(kinds):
            yield dict(zip(kinds, choice, strict=True))


def _told(kind: str, word: str, words: Words) -> str:
    if kind == SOME and word in words.archs:
        return f"{word!r} is an architecture, and ids have the names of its GPUs ({', '.join(words.archs[word])})"
    legal = words.legal(kind)
    listed = len(legal) <= FEW and not words.near(kind, word)
    return f"no {kind} is called {word!r}" + (f" (there are {', '.join(legal) or 'none'})" if listed else "")
