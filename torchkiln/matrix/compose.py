"""An id → the target that it names, from parts that the matrix declares or only the facts know; pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from torchkiln.matrix import facts, nearest, parts, schema, words
from torchkiln.matrix.mend import mended
from torchkiln.matrix.target import ARCH, GENERIC, RUNTIME, Gpu, Target, on

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Accelerator, Extra, Release

MACHINES = {"x8664": ARCH, "aarch64": "aarch64"}
"""Architectures by the words that ids have for them."""
NEAR = 3
"""Of so many rows that do not work the nearest that does is looked for."""


def compose(family: Matrix, known: Facts, identifier: str) -> Target:
    """The row with that id: the matrix's own, else one made of parts by their names.

    A release that only the facts know is the newest patch of its minor (`torch24`), or exactly one (`torch240`), with
    its own trio and the companions of the family's nearest release. UnknownTargetError names every part that nobody
    knows, UsageError what is no id.
    """
    there = words.Words(own=_own(family), known=_known(known), archs=_archs(family, known))
    row = _composed(family, known, words.read(identifier, there, partial(_working, family, known, identifier)))
    return next((listed for listed in family.targets if listed.id == row.id), row)


def _working(family: Matrix, known: Facts, identifier: str, meant: Iterable[Mapping[str, str]]) -> str:
    """The first id of those that may be meant whose row has no error; else the nearest such row's.

    Where no word gives a hint, the matrix's id that is spelt most alike; else none.
    """
    rows = []
    for said in meant:
        rows.append(_composed(family, known, said))
        if nearest.legal(rows[-1], known):
            return rows[-1].id
    if not rows:
        return _alike(family, known, identifier)
    near = ((row, nearest.nearest(row, known, family)) for row in rows[:NEAR])
    return next((other.id for row, other in near if other and other.gpu.driver == row.gpu.driver), "")


def _alike(family: Matrix, known: Facts, identifier: str) -> str:
    ids = {row.id: row for row in family.targets if row.extra is None}
    return next((one for one in get_close_matches(identifier, ids) if nearest.legal(ids[one], known)), "")


def _archs(family: Matrix, known: Facts) -> dict[str, list[str]]:
    """GPUs by architecture as an id would spell it, those of the family first."""
    pairs = [(gpu.arch, gpu.id) for gpu in family.gpus.values()] + [(gpu.target, gpu.id) for gpu in known.gpus]
    found: defaultdict[str, list[str]] = defaultdict(list)
    for arch, name in dict.fromkeys(pairs):
        found[arch.replace("_", "")].append(name)
    return {arch: names for arch, names in found.items() if arch}


def _own(family: Matrix) -> words.Vocabulary:
    """The words that the matrix has for its parts."""
    return {
        "release": family.releases.keys(),
        "accelerator": family.accelerators.keys(),
        "gpu": {GENERIC, *family.gpus},
        "flavour": {RUNTIME, *family.flavours},
        "base": family.bases.keys(),
        "arch": MACHINES.keys(),
        "extra": _extras(family).keys(),
    }


def _known(known: Facts) -> words.Vocabulary:
    """The words for what only the facts know."""
    gpus = {row.id for row in known.gpus}
    return {"release": _releases(known).keys(), "accelerator": _accelerators(known).keys(), "gpu": gpus}


def _composed(family: Matrix, known: Facts, said: Mapping[str, str]) -> Target:
    stated = family.accelerators.get(said["accelerator"]) or _accelerators(known)[said["accelerator"]]
    flavour = parts.flavour(said.get("flavour", RUNTIME), stated.id, family)
    base = next(base for base in family.bases.values() if base.id == said.get("base", base.id if base.default else ""))
    row = Target(
        release=family.releases.get(said["release"]) or _release(said["release"], known, family),
        accelerator=stated,
        gpu=_gpu(said.get("gpu", GENERIC), known, family),
        flavour=flavour,
        base=on(base, flavour),
        required=family.targets[0].required,
        arch=MACHINES[said["arch"]] if "arch" in said else ARCH,
        extra=_extras(family).get(said.get("extra", "")),
    )
    row = schema.complete(row, known, {stated.id: family.run_options.get(stated.id, ())})
    made = mended(row, known)  # what nobody has stated is as it has to be
    return replace(
        row,
        release=row.release if said["release"] in family.releases else made.release,
        gpu=row.gpu if stated.id in family.accelerators else made.gpu,
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
