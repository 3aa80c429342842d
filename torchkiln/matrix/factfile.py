"""facts.yaml as it is written: each table's rows, typed; pure after read().

Unknown stays unknown: a fact that was not established is an empty value, never a guess.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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
    kin: str = Field("", alias="class")
    """What a row for this and others of its kind is called: `hopper`."""
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


class HazardFact(Row):
    """Text in an option of `docker run` that makes a row something else than it says."""

    has: str
    why: str
    instead: str


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


class ToolchainFact(Row):
    """What NVIDIA's wheels of a compiler hold."""

    cuda: str
    """Versions, as `torch` in other rows."""
    wheel: str
    nvcc: Text
    """Version of the compiler for these; empty where there is none."""
    holds: str


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


class KernelFloorFact(Row):
    """The oldest kernel driver that AMD tests with a ROCm."""

    rocm: str
    """Major and minor."""
    kmd: Text


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
    kernel_floors: tuple[KernelFloorFact, ...]
    run_options: tuple[OptionFact, ...]
    hazards: tuple[HazardFact, ...]
    numpy: tuple[NumpyFact, ...]
    setuptools: tuple[SetuptoolsFact, ...]
    triton: tuple[TritonFact, ...]
    triton_rocm: tuple[TritonPackageFact, ...]
    triton_xpu: tuple[TritonPackageFact, ...]
    suites: tuple[SuiteFact, ...]
    tools: tuple[ToolFact, ...]
    toolchains: tuple[ToolchainFact, ...]
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
            "kernel_floors": found["rocm"]["kernel_driver_vs_userspace"]["oldest_listed_kmd_for_userspace"],
            "run_options": found["run_options"]["rows"],
            "hazards": found["hazards"]["rows"],
            "numpy": found["numpy"]["rows"],
            "setuptools": found["triton_setuptools"]["rows"],
            "triton": found["pairing"]["triton_python_limit"],
            "triton_rocm": found["index_variants"]["triton_package_on_rocm"],
            "triton_xpu": found["index_variants"]["triton_package_on_xpu"],
            "suites": found["suites"]["rows"],
            "tools": found["base_toolchain"]["rows"],
            "toolchains": found["devel_toolchains"]["rows"],
            "wheels": found["index_wheels"],
            "needs": found["index_requirements"],
        }
    )
