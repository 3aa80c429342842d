"""facts.yaml → who supports what: typed rows, and the questions that rows of the matrix ask of them; pure after read().

Unknown stays unknown: a fact that was not established is an empty value, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel, BeforeValidator, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchkiln.matrix.target import Accelerator

FACTS = Path(__file__).with_name("facts.yaml")


def _known(value: object) -> object:
    return "" if value in {"unknown", "none", None} else value


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else ()


Text = Annotated[str, BeforeValidator(_known)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class Row(BaseModel):
    """One fact; keys that no question needs are left in the file."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ReleaseFact(Row):
    """What belongs together in one release of torch."""

    torch: str
    torchvision: Text
    torchvision_also: Texts = ()
    torchaudio: Text
    torchaudio_basis: str = ""
    python: Texts
    pypi_variant: str


class VariantFact(Row):
    """Builds of a torch; `pypi` is the one that PyPI serves."""

    torch: str
    pypi: str
    matrix: Texts = ()
    also_seen: Texts = ()
    named_in_package: Texts = ()


class DriverFact(Row):
    """Drivers that a CUDA variant needs."""

    variant: str
    torch: str = ""
    full: Text
    minor_compat: str


class ArchFact(Row):
    """Architectures compiled into the wheels of a variant."""

    torch: str
    variant: str = ""
    rocm: Text = ""
    arch: Texts = ()
    gfx: Texts = ()


class FloorFact(Row):
    """The C library that a wheel really needs."""

    torch: str
    source: str
    variants: Texts = ()
    real_glibc: str


class GpuFact(Row):
    """A kind of GPU."""

    gpu: str
    target: str
    first_toolkit: Text = ""
    driver_min: str = ""

    @property
    def id(self) -> str:
        """What ids would call it: `rtx4090d`, `mi300x`."""
        return self.gpu.lower().replace(" ", "")


class CapabilityFact(Row):
    """What a GPU older than `arch` cannot do, and the rule that says so."""

    rule: str
    feature: str
    arch: str
    why: str


class KernelDriverFact(Row):
    """ROCm versions that AMD tests a kernel driver with."""

    kmd: str
    userspace: Texts
    complete: bool = True
    """Whether what is not listed is known not to be tested."""

    def of(self, driver: str) -> bool:
        """Whether the row is of a driver."""
        return any(_wild(pattern, driver) for pattern in self.kmd.split(", "))

    def tested(self, rocm: str) -> bool:
        """Whether AMD tests it with a ROCm."""
        return any(_wild(pattern, rocm) for pattern in self.userspace)


def _wild(pattern: str, version: str) -> bool:
    """Whether `6.2.x` covers `6.2`, `6.2.4`."""
    return f"{version}.".startswith(pattern.removesuffix("x"))


class OptionFact(Row):
    """An option of `docker run`, the kinds of row that need it, and what does the same."""

    option: str
    any: Texts
    kinds: Texts
    why: str


class TritonPackageFact(Row):
    """What an accelerator's build calls its Triton."""

    torch: str
    name: str


class NumpyFact(Row):
    """The first NumPy that a torch cannot work with."""

    torch: str
    below: str


class SetuptoolsFact(Row):
    """Where setuptools is needed and nobody declares it."""

    torch: str
    python_below: str
    detail: str


class TritonFact(Row):
    """The Pythons for which torch asks for Triton."""

    torch: str
    triton_only_for_python: str


class SuiteFact(Row):
    """What a distribution's release ships."""

    suite: str
    distribution: Literal["debian", "ubuntu"]
    python: str
    glibc: str


class ToolFact(Row):
    """Packages of which a base needs one; `{python}` stands for its minor."""

    packages: Texts
    why: str


class WheelFact(Row):
    """The hash that lock files of others state for a wheel on the PyTorch index."""

    file: str
    sha256: str
    by: Texts = ()
    """Who states it, independently of one another."""
    size: int = 0
    """Bytes; 0 if nobody states it."""


class NeedFact(Row):
    """What a build of torch on the PyTorch index asks for that the one on PyPI does not."""

    torch: str
    variant: str
    requires: Texts
    confidence: Text = ""


class Facts(Row):
    """Every table that is asked."""

    sources: dict[str, str]
    releases: tuple[ReleaseFact, ...]
    variants: tuple[VariantFact, ...]
    drivers: tuple[DriverFact, ...]
    cuda_archs: tuple[ArchFact, ...]
    rocm_archs: tuple[ArchFact, ...]
    floors: tuple[FloorFact, ...]
    gpus: tuple[GpuFact, ...]
    capabilities: tuple[CapabilityFact, ...]
    machines: tuple[str, ...]
    kernel_drivers: tuple[KernelDriverFact, ...]
    run_options: tuple[OptionFact, ...]
    numpy: tuple[NumpyFact, ...]
    setuptools: tuple[SetuptoolsFact, ...]
    triton: tuple[TritonFact, ...]
    triton_rocm: tuple[TritonPackageFact, ...]
    triton_xpu: tuple[TritonPackageFact, ...]
    suites: tuple[SuiteFact, ...]
    tools: tuple[ToolFact, ...]
    wheels: tuple[WheelFact, ...]
    needs: tuple[NeedFact, ...]


def read(path: Path = FACTS) -> Facts:
    """The facts file; it ships with the package, so a wrong form is a bug and shows as pydantic's own error."""
    found: dict[str, Any] = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    return Facts.model_validate(
        {
            "sources": found["sources"],
            "releases": found["releases"]["rows"],
            "variants": found["index_variants"]["rows"],
            "drivers": found["cuda_driver"]["by_torch_variant"],
            "cuda_archs": found["arch_lists_cuda"],
            "rocm_archs": found["arch_lists_rocm"],
            "floors": found["wheel_floor"]["rows"],
            "gpus": found["gpu_profiles"],
            "capabilities": found["capabilities"]["rows"],
            "machines": found["machines"],
            "kernel_drivers": found["rocm"]["kernel_driver_vs_userspace"]["rows"],
            "run_options": found["run_options"]["rows"],
            "numpy": found["numpy"]["rows"],
            "setuptools": found["triton_setuptools"]["rows"],
            "triton": found["pairing"]["triton_python_limit"],
            "triton_rocm": found["index_variants"]["triton_package_on_rocm"],
            "triton_xpu": found["index_variants"]["triton_package_on_xpu"],
            "suites": found["suites"]["rows"],
            "tools": found["base_toolchain"]["rows"],
            "wheels": found["index_wheels"],
            "needs": found["index_requirements"],
        }
    )


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


def gpu_driver(facts: Facts, arch: str) -> str:
    """The oldest driver branch that knows a GPU, where one is stated; else empty."""
    return next((row.driver_min for row in facts.gpus if row.target == arch and row.driver_min), "")


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
    return replace(
        stated,
        driver_floor=drivers.minor_compat if drivers else "",
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
