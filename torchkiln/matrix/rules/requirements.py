"""Rules about what a row asks for beside the trio: companions, and what flavours and users add."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchkiln.matrix import facts
from torchkiln.matrix.rules.finding import error
from torchkiln.matrix.target import DEVEL, TRIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.rules.finding import Finding
    from torchkiln.matrix.target import Accelerator, Target

CUDA_MAJOR = re.compile(r"nvidia-[a-z0-9-]+-cu(\d+)")
"""NVIDIA's wheels carry the CUDA major in their names up to 12."""
TOOLKIT = re.compile(r"cuda-toolkit|nvidia-cuda-(?:cccl|crt|cupti|nvcc|nvrtc|nvvm|runtime)(?:-cu\d+)?")
"""Those of NVIDIA's wheels that are versioned as the toolkit is."""


parsed = lru_cache(maxsize=None)(Requirement)
"""A requirement from its text; parsed once, for every row asks for the same few."""


def asked(target: Target) -> tuple[Requirement, ...]:
    """Everything a row asks the resolver for, save the trio."""
    extra = target.extra.requirements if target.extra else ()
    return tuple(parsed(text) for text in (*target.release.companions, *target.flavour.requirements, *extra))


def named(requirements: Iterable[Requirement], name: str) -> Requirement | None:
    """The requirement on a project, if there is one."""
    return next((one for one in requirements if canonicalize_name(one.name) == name), None)


def trio_once(target: Target, known: Facts) -> Iterator[Finding]:
    """Only the release names torch, torchvision and torchaudio: a wheel of theirs need not declare its partner."""
    for name in TRIO:
        if found := named(asked(target), name):
            message = f"{found} is asked for beside the release, which states {name} for the row"
            fact = f"torchaudio 2.11.0 declares no torch, so a resolver pairs it with any; {known.sources['releases']}"
            yield error("trio-once", message, fact, f"{name} in `releases` only")


def triton_flavour(target: Target, known: Facts) -> Iterator[Finding]:
    """One Triton: distributions of another accelerator's build write the same top-level module."""
    kind, source = target.accelerator.kind, known.sources["index_variants"]
    for requirement in asked(target):
        if _other_triton(requirement, kind, known):
            message = f"{requirement} would overwrite the Triton of the {target.accelerator.id} build"
            fact = f"{kind} builds bring {' or '.join(sorted(facts.triton_names(known, kind)))}; {source}"
            near = f"a row without {requirement.name}: torch brings its own"
            yield error("triton-flavour", message, fact, near)


def _other_triton(requirement: Requirement, kind: str, known: Facts) -> bool:
    own = facts.triton_names(known, kind)
    others = (facts.triton_names(known, other) for other in ("cuda", "rocm", "xpu"))
    return bool(own) and canonicalize_name(requirement.name) in frozenset[str]().union(*others) - own


def cuda_packages(target: Target, known: Facts) -> Iterator[Finding]:
    """NVIDIA's wheels are of the row's CUDA: same major in their name, same minor where they are the toolkit."""
    accelerator = target.accelerator
    for requirement in asked(target):
        if _other_cuda(requirement, accelerator):
            message = f"{requirement} is not of {accelerator.id}"
            fact = f"{accelerator.id} is built for {accelerator.kind} {accelerator.version}".rstrip()
            near = f"{requirement.name} of {accelerator.id}, or a row without it"
            yield error("cuda-packages", message, f"{fact}; {known.sources['index_variants']}", near)


def _other_cuda(requirement: Requirement, accelerator: Accelerator) -> bool:
    name, cuda = canonicalize_name(requirement.name), accelerator.version.split(".")
    major, toolkit = CUDA_MAJOR.fullmatch(name), TOOLKIT.fullmatch(name)
    if accelerator.kind != "cuda":
        return bool(major or toolkit)
    pins = [one.version.split(".") for one in requirement.specifier if one.operator in {"==", "~="}]
    return bool((major and major[1] != cuda[0]) or (toolkit and any(pin[:2] != cuda[:2] for pin in pins)))


def misplaced(requirement: Requirement, target: Target, known: Facts) -> bool:
    """Whether no row of this accelerator may ask for it."""
    own = canonicalize_name(requirement.name) in TRIO
    return (
        own
        or _other_triton(requirement, target.accelerator.kind, known)
        or _other_cuda(requirement, target.accelerator)
    )


def numpy_bound(target: Target, known: Facts) -> Iterator[Finding]:
    """NumPy 2 stays out of a torch that was built for NumPy 1."""
    row = facts.numpy(known, target.release.torch)
    if row is None:
        return
    bounds = [one.specifier for one in asked(target) if canonicalize_name(one.name) == "numpy"]
    if all(bound.contains(f"{row.below}.0.0") for bound in bounds):
        message = f"torch {target.release.torch} breaks with NumPy {row.below}, and the companions allow it"
        fact = f"torch {row.torch} needs numpy below {row.below}; {known.sources['numpy']}"
        yield error("numpy-bound", message, fact, f"numpy<{row.below} among the companions")


def setuptools_needed(target: Target, known: Facts) -> Iterator[Finding]:
    """What torch.compile imports is there, even if no wheel declares it."""
    rows = (row for row in known.setuptools if facts.covers(row.torch, target.release.torch))
    row = next((row for row in rows if facts.older(target.base.python, row.python_below)), None)
    if row and named(asked(target), "setuptools") is None:
        message = f"torch {target.release.torch} on Python {target.base.python} cannot compile without setuptools"
        fact = f"{row.detail}; {known.sources['triton_setuptools']}"
        yield error("setuptools-needed", message, fact, "setuptools among the companions")


def flavour_available(target: Target, known: Facts) -> Iterator[Finding]:
    """The flavour can be had for the row's accelerator."""
    flavour, accelerator = target.flavour, target.accelerator
    if why := flavour.unavailable:
        message = f"flavour {flavour.id} can't be had for {accelerator.id}"
        fact = f"{why}; matrix.yaml, flavours.{flavour.id}"
        wheels = facts.toolchain(known, accelerator.version) if accelerator.kind == "cuda" else None
        if flavour.id == DEVEL and wheels and not wheels.nvcc:
            fact = f"{wheels.wheel} holds {wheels.holds}, no nvcc; {known.sources['devel_toolchains']}; {fact}"
        yield error("flavour-available", message, fact)
