"""A row with everything put right that needs no other release, accelerator, base or GPU; pure.

What the rules leave no choice about: the trio's partners, companions, the base's own Python, packages, run options.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from torchkiln.matrix import facts
from torchkiln.matrix.rules import bases, devices, requirements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.target import Base, Extra, Gpu, Release, Target


def mended(target: Target, known: Facts) -> Target:
    """The same row without the mistakes that have one answer."""
    release = _trio(target.release, known)
    row = replace(target, release=replace(release, companions=tuple(_fitting(release.companions, target, known))))
    row = replace(
        row,
        arch=target.arch if target.arch in known.machines else known.machines[0],
        flavour=replace(row.flavour, requirements=tuple(_fitting(row.flavour.requirements, target, known))),
        extra=_extra(target.extra, target, known) if target.extra else None,
        base=_base(target, known),
        gpu=_gpu(target, known),
    )
    return replace(row, release=replace(row.release, companions=tuple(_companions(row, known))))


def _gpu(target: Target, known: Facts) -> Gpu:
    """The row's GPU with the architecture that the facts know for its name."""
    gpu = replace(target.gpu, run_options=run_options(target, known))
    own = facts.arch_of(known, gpu.id)
    if not gpu.arch or own in {"", gpu.arch}:
        return gpu
    return replace(gpu, arch=own, driver_floor=facts.gpu_driver(known, own))


def newer_driver(target: Target, known: Facts) -> Target:
    """The same row on hosts whose driver is new enough for its CUDA and its GPU."""
    accelerator, gpu = target.accelerator, target.gpu
    needed = [accelerator.driver_floor, facts.gpu_driver(known, gpu.arch)]
    needed += [accelerator.driver_full] if any(devices.ptx_driver(target, known)) else []
    stated = gpu.driver
    for floor in needed:
        stated = floor if stated and floor and facts.older(stated, floor) else stated
    return replace(target, gpu=replace(gpu, driver=stated))


def _trio(release: Release, known: Facts) -> Release:
    pair = facts.release(known, release.torch)
    if pair is None:
        return release
    vision = {"", pair.torchvision, *pair.torchvision_also}
    audio = {"", pair.torchaudio or facts.FREE_AUDIO}
    return replace(
        release,
        torchvision=release.torchvision if release.torchvision in vision else pair.torchvision,
        torchaudio=release.torchaudio if release.torchaudio in audio else pair.torchaudio,
    )


def _fitting(texts: Iterable[str], target: Target, known: Facts) -> Iterator[str]:
    """Requirements less those that no row of this accelerator may have."""
    for text in texts:
        if not requirements.misplaced(requirements.parsed(text), target, known):
            yield text


def _extra(extra: Extra, target: Target, known: Facts) -> Extra:
    return replace(extra, requirements=tuple(_fitting(extra.requirements, target, known)))


def _companions(target: Target, known: Facts) -> Iterator[str]:
    """A row's companions with NumPy bounded and setuptools there, as its torch needs."""
    numpy = facts.numpy(known, target.release.torch) if any(requirements.numpy_bound(target, known)) else None
    for text in target.release.companions:
        if not (numpy and canonicalize_name(requirements.parsed(text).name) == "numpy"):
            yield text
    if numpy:
        yield f"numpy<{numpy.below}"
    if any(requirements.setuptools_needed(target, known)):
        yield "setuptools"


def _base(target: Target, known: Facts) -> Base:
    base, suite = target.base, facts.suite(known, target.base.suite)
    if base.kind != "debian":
        return base
    foreign = {
        name for name in base.packages if bases.DRIVER_PACKAGE.fullmatch(name) or bases.other_toolkit(name, target)
    }
    kept = tuple(name for name in base.packages if name not in foreign)
    added: dict[str, None] = {}
    for names, _ in bases.lacking(target, known):
        added |= {} if set(names) & added.keys() else {names[0]: None}
    python, glibc = (suite.python, suite.glibc) if suite else (base.python, base.glibc)
    return replace(base, packages=(*kept, *added), python=python, glibc=glibc)


def run_options(target: Target, known: Facts) -> tuple[str, ...]:
    """A row's options of `docker run`, less what is for another kind of accelerator, and with what its own needs."""
    kind, stated = target.accelerator.kind, target.gpu.run_options
    foreign = tuple(start for row in known.run_options if kind not in row.kinds for start in row.any)
    joined = devices.joined(stated)
    hurts = [one for one in joined if any(hazard.has in one for hazard in known.hazards)]
    last = {one.partition("=")[0]: place for place, one in enumerate(joined)}
    kept = [
        one
        for place, one in enumerate(joined)
        if (name := one.partition("=")[0]) not in devices.SINGLE or last[name] == place
        if one not in hurts and not one.startswith(foreign)
    ]
    for row in known.run_options:
        if kind in row.kinds and not any(one.startswith(row.any) for one in kept):
            kept.append(row.option)
    return stated if tuple(kept) == joined else tuple(kept)
