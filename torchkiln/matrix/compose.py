"""An id → the target that it names, from parts that the matrix declares or only the facts know; pure."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from torchkiln.errors import UnknownTargetError, UsageError
from torchkiln.matrix import facts, nearest, parts, schema
from torchkiln.matrix.mend import mended
from torchkiln.matrix.target import ARCH, GENERIC, RUNTIME, Gpu, Target, on

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Accelerator, Extra, Release

FORM = "<release>-<accelerator>[-<gpu>][-<flavour>][-<base>][-<arch>][-with-<extra>]"
KINDS = ("gpu", "flavour", "base", "arch")
"""What may follow, in this order."""
MACHINES = {"x8664": ARCH, "aarch64": "aarch64"}
"""Architectures by the words that ids have for them."""


def compose(family: Matrix, known: Facts, identifier: str) -> Target:
    """The row with that id: the matrix's own, else one made of parts by their names.

    A release that only the facts know is the newest patch of its minor (`torch24`), or exactly one (`torch240`), with
    its own trio and the companions of the family's nearest release. UnknownTargetError names every part that nobody
    knows, UsageError what is no id.
    """
    row = _composed(family, known, _read(family, known, identifier))
    return next((listed for listed in family.targets if listed.id == row.id), row)


def _composed(family: Matrix, known: Facts, words: Mapping[str, str]) -> Target:
    stated = family.accelerators.get(words["accelerator"]) or _accelerators(known)[words["accelerator"]]
    flavour = parts.flavour(words.get("flavour", RUNTIME), stated.id, family)
    base = next(
        base for base in family.bases.values() if base.id == words.get("base", base.id if base.default else "")
    )
    row = Target(
        release=family.releases.get(words["release"]) or _release(words["release"], known, family),
        accelerator=stated,
        gpu=_gpu(words.get("gpu", GENERIC), known, family),
        flavour=flavour,
        base=on(base, flavour),
        required=family.targets[0].required,
        arch=MACHINES[words["arch"]] if "arch" in words else ARCH,
        extra=_extras(family).get(words.get("extra", "")),
    )
    row = schema.complete(row, known, {stated.id: family.run_options.get(stated.id, ())})
    made = mended(row, known)  # what nobody has stated is as it has to be
    return replace(
        row,
        release=row.release if words["release"] in family.releases else made.release,
        gpu=row.gpu if stated.id in family.accelerators else made.gpu,
    )


def _read(family: Matrix, known: Facts, identifier: str) -> dict[str, str]:
    """The words of an id by what they are."""
    named, _, extra = identifier.partition("-with-")
    release, *rest = named.split("-")
    if not rest or not re.fullmatch(r"[a-z0-9-]+", named) or "" in rest:
        raise UsageError(f"{identifier!r} is no id", remedy=f"an id is {FORM}, for example {family.targets[0].id}")
    legal = {
        "release": {*family.releases, *_releases(known)},
        "accelerator": {*family.accelerators, *_accelerators(known)},
    }
    legal |= {"gpu": {*family.gpus, *(row.id for row in known.gpus)}, "flavour": {*family.flavours, RUNTIME}}
    legal |= {"base": {*family.bases}, "arch": {*MACHINES}, "extra": {*_extras(family)}}
    words = [("release", release), ("accelerator", rest[0]), *_kinds(rest[1:], legal)]
    words += [("extra", extra)] if extra else []
    if unknown := [(kind, word) for kind, word in words if word not in legal.get(kind, ())]:
        raise _unknown(identifier, unknown, legal)
    _ordered(identifier, words, extra)
    return dict(words)


def _kinds(words: Iterable[str], legal: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """What each optional word is; names are unique over these kinds."""
    return [(next((kind for kind in KINDS if word in legal[kind]), "part"), word) for word in words]


def _ordered(identifier: str, words: list[tuple[str, str]], extra: str) -> None:
    optional = [(kind, word) for kind, word in words if kind in KINDS]
    kinds = [kind for kind, _ in optional]
    for kind in KINDS:
        if kinds.count(kind) > 1:
            both = " and ".join(word for one, word in optional if one == kind)
            raise UsageError(f"{identifier} names two of one kind ({kind}): {both}", remedy=f"an id is {FORM}")
    if kinds != sorted(kinds, key=KINDS.index):
        right = [word for _, word in words[:2]] + [
            word for _, word in sorted(optional, key=lambda one: KINDS.index(one[0]))
        ]
        right += ["with", extra] if extra else []
        raise UsageError(f"{identifier}: the parts of an id have an order", where=FORM, remedy="-".join(right))


def _unknown(identifier: str, unknown: list[tuple[str, str]], legal: Mapping[str, set[str]]) -> UnknownTargetError:
    """Every part that nobody knows, with the nearest word of its kind."""
    every = {"part": {word for kind in KINDS for word in legal[kind]}}
    told, mended_id, certain = [], identifier, True
    for kind, word in unknown:
        words = sorted(legal.get(kind) or every.get(kind, set()))
        near = get_close_matches(word, words, n=1, cutoff=0.5)
        names = kind if kind != "part" else "GPU, flavour, base or architecture"
        told.append(f"no {names} is called {word!r}" + ("" if near else f" (there are {', '.join(words) or 'none'})"))
        certain, mended_id = certain and bool(near), mended_id.replace(word, near[0], 1) if near else mended_id
    return UnknownTargetError(
        f"{identifier}: {'; '.join(told)}",
        where="matrix.yaml and torchkiln/matrix/facts.yaml",
        remedy=mended_id if certain else f"an id is {FORM}",
    )


def _releases(known: Facts) -> dict[str, str]:
    """Torch by the words for it: a minor stands for its last patch, and goes before a patch that reads the same."""
    exact = {f"torch{row.torch.replace('.', '')}": row.torch for row in known.releases}
    return exact | {"torch" + "".join(map(str, parts.minor(row.torch))): row.torch for row in known.releases}


def _release(word: str, known: Facts, family: Matrix) -> Release:
    torch = _releases(known)[word]
    like = min(family.releases.values(), key=lambda one: abs(nearest.age(one.torch) - nearest.age(torch)))
    whole = replace(like, torchvision=like.torchvision or "any", torchaudio=like.torchaudio or "any")
    return parts.release(torch, known, whole, word)


def _accelerators(known: Facts) -> dict[str, Accelerator]:
    made = (parts.accelerator(variant) for variant in sorted(facts.every_variant(known)))
    return {one.id: one for one in made if one}


def _gpu(word: str, known: Facts, family: Matrix) -> Gpu:
    generic = family.gpus.get(GENERIC, Gpu(id=GENERIC))
    return family.gpus.get(word) or parts.gpu(word, known, generic) or generic


def _extras(family: Matrix) -> dict[str, Extra]:
    return {product.extra.id: product.extra for product in family.products if product.extra}
