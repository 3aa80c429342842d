"""The row that changes least and works, among what the facts know and the matrix declares; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from torchkiln.matrix import facts, parts, rules
from torchkiln.matrix.mend import mended, newer_driver
from torchkiln.matrix.target import RUNTIME, Flavour, on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Accelerator, Base, Release, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Parts that a row could have instead of its own."""

    release: Release
    accelerator: Accelerator
    base: Base
    flavour: str


def nearest(target: Target, known: Facts, family: Matrix | None = None) -> Target | None:
    """The least changed row without errors, without warnings if there is one; None if nothing helps.

    The GPU always stays, and its driver unless no row runs on it. Another build is known to serve that GPU.
    """
    build = (target.release.torch, target.accelerator.id)
    every = candidates(target, known, family)
    rows = tuple(row for row in every if established(row) or (row.release.torch, row.accelerator.id) == build)
    newer = tuple(newer_driver(row, known) for row in rows if row.gpu.driver)
    tries = ((rows, fine), (rows, legal), (newer, fine), (newer, legal))
    return next((row for among, good in tries for row in among if good(row, known)), None)


def legal(target: Target, known: Facts) -> bool:
    """Whether a row has no error."""
    return all(finding.severity != "error" for finding in rules.check(target, known))


def fine(target: Target, known: Facts) -> bool:
    """Whether a row has neither error nor warning."""
    return all(finding.severity == "note" for finding in rules.check(target, known))


def established(target: Target) -> bool:
    """Whether it is known which GPUs the row's wheels serve, or none is asked for."""
    return not target.gpu.arch or bool(target.accelerator.archs)


def candidates(target: Target, known: Facts, family: Matrix | None = None) -> Iterator[Target]:
    """The row itself, mended, then with other parts: few changes first, accelerators before releases before bases."""
    for choice in sorted(_choices(target, known, family), key=lambda choice: cost(choice, target, known)):
        yield mended(_with(target, choice, known, family), known)


def _choices(target: Target, known: Facts, family: Matrix | None) -> Iterator[Choice]:
    bases = {target.base.id: target.base} | (dict(family.bases) if family else {})
    flavours = dict.fromkeys((target.flavour.id, RUNTIME))
    for release in _releases(target, known, family):
        for accelerator in _accelerators(target, release.torch, known):
            for base, flavour in product(bases.values(), flavours):
                yield Choice(release=release, accelerator=accelerator, base=base, flavour=flavour)


def _releases(target: Target, known: Facts, family: Matrix | None) -> Iterator[Release]:
    """The row's own, and of every other minor the one that the family has, else the last patch."""
    own, stated = target.release, family.releases.values() if family else ()
    by_minor: dict[tuple[int, ...], Release] = {}
    for row in known.releases:
        by_minor[parts.minor(row.torch)] = parts.release(row.torch, known, own)
    by_minor |= {parts.minor(one.torch): one for one in stated if facts.release(known, one.torch)}
    if facts.release(known, own.torch):
        by_minor[parts.minor(own.torch)] = own
    for release in by_minor.values():
        yield _less(release, own)


def _less(release: Release, own: Release) -> Release:
    """A release without what the row goes without."""
    vision = release.torchvision if own.torchvision else ""
    return replace(release, torchvision=vision, torchaudio=release.torchaudio if own.torchaudio else "")


def _accelerators(target: Target, torch: str, known: Facts) -> Iterator[Accelerator]:
    """Those of the GPU's kind that a torch is built for; without a GPU, those of the row's kind."""
    kind = facts.kind(target.gpu.arch) if target.gpu.arch else target.accelerator.kind
    for variant in facts.variants(known, torch):
        made = parts.accelerator(variant)
        if made and made.kind == kind:
            yield made


def _with(target: Target, choice: Choice, known: Facts, family: Matrix | None) -> Target:
    flavour = _flavour(target, choice, family)
    own = choice.base.id == target.base.id and choice.flavour == target.flavour.id
    return replace(
        target,
        release=choice.release,
        accelerator=facts.complete(known, choice.accelerator, choice.release.torch),
        gpu=replace(target.gpu, run_options=_options(target, choice.accelerator.id, family)),
        flavour=flavour,
        base=target.base if own else on(choice.base, flavour),
        oldest_glibc="",
    )


def _options(target: Target, accelerator: str, family: Matrix | None) -> tuple[str, ...]:
    """The GPU's run options beside those that the family has for an accelerator, instead of the row's own."""
    stated = family.run_options if family else {}
    own, options = stated.get(target.accelerator.id, ()), target.gpu.run_options
    if accelerator not in stated or options[: len(own)] != own:
        return options
    return stated[accelerator] + options[len(own) :]


def _flavour(target: Target, choice: Choice, family: Matrix | None) -> Flavour:
    same = choice.flavour == target.flavour.id
    if same and choice.accelerator.id == target.accelerator.id:
        return target.flavour
    if family and choice.flavour in family.flavours:
        return parts.flavour(choice.flavour, choice.accelerator.id, family)
    return replace(target.flavour, unavailable="") if same else Flavour(id=RUNTIME)


def cost(choice: Choice, target: Target, known: Facts) -> tuple[int, tuple[object, ...]]:
    """How many parts a choice changes; and, of as many, how much that hurts."""
    accelerator, torch = choice.accelerator, choice.release.torch
    changed = (
        choice.flavour != target.flavour.id,
        choice.base.id != target.base.id,
        torch != target.release.torch,
        accelerator.id != target.accelerator.id,
    )
    default = facts.default_variant(known, torch) == accelerator.variant
    other_kind = accelerator.kind != target.accelerator.kind
    apart = (
        (not default, -_level(accelerator)) if other_kind else _apart(_level(accelerator), _level(target.accelerator))
    )
    return sum(changed), (changed, _apart(age(torch), age(target.release.torch)), apart)


def _apart(one: float, other: float) -> tuple[float, bool]:
    """How far apart two versions are; of two as far, the newer is nearer."""
    return abs(one - other), one < other


def age(torch: str) -> float:
    """A minor as one number, so that 2.10 comes one after 2.9."""
    major, minor, *_ = parts.minor(torch)
    return 100 * major + minor


def _level(accelerator: Accelerator) -> float:
    """A version of CUDA or ROCm as one number: 12.4 is two from 12.6 and nine from 13.3."""
    major, minor, patch, *_ = [int(part) for part in accelerator.version.split(".") if part] + [0, 0, 0]
    return 10 * major + minor + patch / 10


def changes(target: Target, row: Target) -> tuple[str, ...]:
    """What is different in another row, in words; what follows from the rest is left out."""
    release, base = row.release, row.base
    torch, kind = release.torch != target.release.torch, row.accelerator.kind != target.accelerator.kind
    other = base.id != target.base.id
    flavour = other or row.flavour.id != target.flavour.id
    told = (
        (release.torch, target.release.torch, "torch {}", False),
        (release.torchvision, target.release.torchvision, "torchvision {}", torch),
        (release.torchaudio, target.release.torchaudio, "torchaudio {}", torch),
        (row.accelerator.id, target.accelerator.id, "{}", False),
        (row.flavour.id, target.flavour.id, "flavour {}", False),
        (base.id, target.base.id, f"base {{}} (Python {base.python}, glibc {base.glibc})", False),
        (base.python, target.base.python, "Python {}", other),
        (base.glibc, target.base.glibc, "glibc {}", other),
        (row.arch, target.arch, "{}", False),
        (row.gpu.arch, target.gpu.arch, f"arch {{}} of {row.gpu.id}", False),
        (row.gpu.driver, target.gpu.driver, "driver {} or newer", False),
    )
    words = [form.format(new or "none") for new, old, form, follows in told if new != old and not follows]
    lists = (
        (release.companions, target.release.companions, "companion", torch),
        (base.packages, target.base.packages, "package", flavour),
        (row.gpu.run_options, target.gpu.run_options, "run option", kind),
        (row.flavour.requirements, target.flavour.requirements, "requirement", flavour),
        (_added(row), _added(target), "addition", False),
    )
    for new, old, word, follows in lists:
        words += [f"{word} {one}" for one in new if one not in old and not follows]
        words += [f"without {word} {one}" for one in old if one not in new and not follows]
    return tuple(words)


def _added(row: Target) -> tuple[str, ...]:
    return row.extra.requirements if row.extra else ()
