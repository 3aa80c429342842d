"""Who supports what: the questions that rows of the matrix ask of facts.yaml; pure."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchkiln.matrix.factfile import Facts, read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchkiln.matrix.factfile import (
        ArchFact,
        DriverFact,
        KernelDriverFact,
        NeedFact,
        NumpyFact,
        ReleaseFact,
        SuiteFact,
        ToolchainFact,
        VariantFact,
    )
    from torchkiln.matrix.target import Accelerator

__all__ = ["Facts", "read"]

FREE_AUDIO = "2.11.1"
"""A torchaudio that accepts any torch from 2.11 on (table `pairing`)."""


@cache
def _version(text: str) -> Version:
    """Parsed once: rules ask about the same few versions for every row."""
    return Version(text)


def older(one: str, other: str) -> bool:
    """Whether a version is below another."""
    return _version(one) < _version(other)


def _parts(version: str) -> tuple[int, ...]:
    return _version(version).release


@cache
def covers(expression: str, version: str) -> bool:
    """Whether "2.5", "2.1 to 2.5", "2.4, 2.5" or "2.8 on" covers a version; a shorter number covers its patches."""
    return any(_covers_one(part.strip(), _parts(version)) for part in expression.replace(" and ", ",").split(","))


def _covers_one(part: str, version: tuple[int, ...]) -> bool:
    if part.endswith(" on"):
        return version >= _parts(part.removesuffix(" on"))
    first, _, last = part.partition(" to ")
    low, high = _parts(first), _parts(last or first)
    return version >= low and version[: len(high)] <= high


def release(facts: Facts, torch: str) -> ReleaseFact | None:
    """What belongs to a torch, if that version is known."""
    return next((row for row in facts.releases if row.torch == torch), None)


def numpy(facts: Facts, torch: str) -> NumpyFact | None:
    """The NumPy that a torch cannot work with, if there is one."""
    return next((row for row in facts.numpy if covers(row.torch, torch)), None)


def suite(facts: Facts, name: str) -> SuiteFact | None:
    """What a distribution's release ships, if it is known."""
    return next((row for row in facts.suites if row.suite == name), None)


def toolchain(facts: Facts, cuda: str) -> ToolchainFact | None:
    """What the wheels of a compiler for a CUDA hold, if anybody looked."""
    return next((row for row in facts.toolchains if covers(row.cuda, cuda)), None)


def _variant_row(facts: Facts, torch: str) -> VariantFact | None:
    return next((row for row in facts.variants if covers(row.torch, torch)), None)


def variants(facts: Facts, torch: str) -> tuple[str, ...]:
    """Every variant that exists for a torch."""
    row = _variant_row(facts, torch)
    named = (row.pypi, *row.matrix, *row.also_seen, *row.named_in_package) if row else ()
    return tuple(sorted(set(named)))


def every_variant(facts: Facts) -> frozenset[str]:
    """Every variant of any torch."""
    return frozenset(name for row in facts.releases for name in variants(facts, row.torch))


def default_variant(facts: Facts, torch: str) -> str:
    """The variant behind a torch without a suffix; empty if unknown."""
    row = _variant_row(facts, torch)
    return row.pypi if row else ""


def driver(facts: Facts, variant: str, torch: str) -> DriverFact | None:
    """Drivers for a CUDA variant of a torch."""
    rows = (row for row in facts.drivers if row.variant == variant)
    return next((row for row in rows if not row.torch or covers(row.torch, torch)), None)


def kernel_driver(facts: Facts, driver: str) -> KernelDriverFact | None:
    """What AMD tests an amdgpu driver with, if it is known."""
    return next((row for row in facts.kernel_drivers if row.of(driver)), None)


def kernel_drivers(facts: Facts, rocm: str) -> tuple[str, ...]:
    """Branches of the amdgpu driver that AMD tests with a ROCm, as the table orders them."""
    return tuple(row.kmd for row in facts.kernel_drivers if row.tested(rocm))


def kernel_floor(facts: Facts, rocm: str) -> str:
    """The oldest branch of the amdgpu driver that AMD tests with a ROCm (`6.0`); empty if that is not established."""
    minor = ".".join(rocm.split(".")[:2])
    return next((row.kmd.removesuffix(".x") for row in facts.kernel_floors if row.rocm == minor), "")


def gpu_driver(facts: Facts, arch: str) -> str:
    """The oldest driver branch that knows a GPU, where its architecture or the one below states one; else empty."""
    near = neighbour(facts, arch)
    return next((row.driver_min for row in facts.gpus if row.target == near and row.driver_min), "")


def neighbour(facts: Facts, arch: str) -> str:
    """Of NVIDIA GPUs the nearest listed architecture of the same major that is no newer; itself if listed."""
    wanted = _capability(arch)
    if wanted is None:
        return arch
    listed = {found: row.target for row in facts.gpus if (found := _capability(row.target))}
    return listed.get(max((one for one in listed if one[0] == wanted[0] and one <= wanted), default=(0, 0)), "")


def _capability(arch: str) -> tuple[int, int] | None:
    """Major and minor: sm_121 is 12.1."""
    found = re.fullmatch(r"sm_(\d+)(\d)", arch)
    return (int(found[1]), int(found[2])) if found else None


def arch_of(facts: Facts, gpu: str) -> str:
    """The architecture of a GPU, or of those of a class, by the name that ids have for it; empty if unknown."""
    return next((row.target for row in facts.gpus if gpu in {row.id, row.kin}), "")


def known_arch(facts: Facts, arch: str) -> bool:
    """Whether any GPU or any build of torch has an architecture."""
    if any(row.target == arch for row in facts.gpus) or any(arch in row.gfx for row in facts.rocm_archs):
        return True
    return any(arch in _arch_names(capability) for row in facts.cuda_archs for capability in row.arch)


def kin(facts: Facts, gpu: str) -> str:
    """What a row for a GPU and others of its kind is called: `hopper` for an `h100`; its own name if nothing else."""
    return next((row.kin for row in facts.gpus if row.id == gpu and row.kin), gpu)


def first_rocm(facts: Facts, arch: str) -> str:
    """The first ROCm that knows a GPU; empty if unknown, or for another vendor's."""
    stated = next((row.first_toolkit for row in facts.gpus if row.target == arch), "")
    found = re.fullmatch(r"ROCm (\d+\.\d+)", stated)
    return found[1] if found else ""


def kind(arch: str) -> str:
    """The kind of accelerator that an architecture belongs to."""
    return "rocm" if arch.startswith("gfx") else "cuda"


def triton_names(facts: Facts, kind: str) -> frozenset[str]:
    """What the builds of a kind of accelerator call their Triton."""
    rows = {"rocm": facts.triton_rocm, "xpu": facts.triton_xpu}.get(kind, ())
    return frozenset({"cuda": ["triton"]}.get(kind, [row.name for row in rows]))


def archs(facts: Facts, variant: str, torch: str) -> tuple[str, ...]:
    """Architectures in the wheels, in torch.cuda.get_arch_list()'s form; empty if unknown or none."""
    if variant.startswith("rocm"):
        version = variant.removeprefix("rocm")
        return next((row.gfx for row in _of(facts.rocm_archs, torch) if version in row.rocm.split(", ")), ())
    found = next((row.arch for row in _of(facts.cuda_archs, torch) if variant in row.variant.split(", ")), ())
    return tuple(name for capability in found for name in _arch_names(capability))


def _of(rows: Iterable[ArchFact], torch: str) -> Iterable[ArchFact]:
    return (row for row in rows if covers(row.torch, torch))


def _arch_names(capability: str) -> tuple[str, ...]:
    number = capability.removesuffix("+PTX").replace(".", "")
    return (f"sm_{number}", f"compute_{number}") if capability.endswith("+PTX") else (f"sm_{number}",)


def complete(facts: Facts, stated: Accelerator, torch: str) -> Accelerator:
    """An accelerator with what the facts know of it for one torch."""
    drivers = driver(facts, stated.variant, torch)
    kernel = kernel_floor(facts, stated.version) if stated.kind == "rocm" else ""
    return replace(
        stated,
        driver_floor=drivers.minor_compat if drivers else kernel,
        driver_full=drivers.full if drivers else "",
        archs=archs(facts, stated.variant, torch),
        by_default=default_variant(facts, torch) == stated.variant,
    )


def hashes(facts: Facts) -> dict[str, str]:
    """Known sha256 of wheels on the PyTorch index, by file name."""
    return {row.file: row.sha256 for row in facts.wheels}


def rocm_triton(facts: Facts, torch: str, python: str) -> str:
    """The package that a ROCm build of torch asks for as its Triton, as of the nearest release known; empty for none.

    None where torch has no Triton for that Python, or none is known for a release so old.
    """
    limit = next((row.triton_only_for_python for row in facts.triton if covers(row.torch, torch)), "any")
    if limit != "any" and not SpecifierSet(limit).contains(python):
        return ""
    known = [row for row in facts.triton_rocm if _parts(row.torch) <= _parts(torch)]
    return max(known, key=lambda row: _parts(row.torch)).name if known else ""


def needs(facts: Facts, torch: str, variant: str) -> NeedFact | None:
    """What a build on the PyTorch index asks for beside what the one on PyPI does, if that is known."""
    return next((row for row in facts.needs if (row.torch, row.variant) == (torch, variant)), None)
