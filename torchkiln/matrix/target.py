"""A target: one row of the matrix, complete and frozen; its id, `expand`, `select`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING, Literal

from torchkiln.errors import UnknownTargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TRIO = ("torch", "torchvision", "torchaudio")
"""Released together, and built for an accelerator together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The userland below the wheels, with its Python."""

    id: str
    """For example `bookworm`; its package lock is images/locks/base-<id>.txt."""
    kind: Literal["debian"]
    suite: str
    """Distribution release that mmdebstrap is asked for."""
    python: str
    """Python minor, for example `3.11`."""
    glibc: str
    packages: tuple[str, ...]
    mirror: str = ""
    """Empty: the client's default; else a mirror, dated if it should never move on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A PyTorch release: the trio and what must come with it."""

    id: str
    """For example `torch25`."""
    torch: str
    """Public version, without the accelerator's suffix."""
    torchvision: str = ""
    torchaudio: str = ""
    """Empty where the row goes without."""
    companions: tuple[str, ...] = ()
    """Requirements (PEP 508) that no wheel declares but the image needs: numpy, setuptools, pip, ninja."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What the wheels were built for."""

    id: str
    """For example `cu124`, `rocm62`, `cpu`."""
    kind: Literal["cuda", "rocm", "cpu"]
    version: str = ""
    """`12.4`, `6.2`; empty for cpu: what torch.version.cuda or .hip starts with."""
    driver_floor: str = ""
    """Oldest driver that starts it, by minor-version compatibility."""
    driver_full: str = ""
    """Driver with every feature of that toolkit."""
    archs: tuple[str, ...] = ()
    """Architectures compiled into this release's wheels: `sm_90`, `compute_120` for PTX, `gfx942`; from the facts."""
    by_default: bool = False
    """Whether PyPI serves this variant for this release; its wheels carry no suffix there. From the facts."""

    @property
    def variant(self) -> str:
        """The local version suffix and the folder of the PyTorch index: `cu124`, `rocm6.2`, `cpu`."""
        return f"rocm{self.version}" if self.kind == "rocm" else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The device a row is meant for, and how to run and judge it there."""

    id: str
    """`generic` fits any device of the accelerator."""
    arch: str = ""
    """`sm_90`, `gfx942`; empty for generic."""
    memory_gb: int = 0
    driver: str = ""
    """Driver that hosts of this row are known to run; empty if not stated."""
    run_options: tuple[str, ...] = ()
    """Options of `docker run`."""
    sizing: Mapping[str, int] = field(default_factory=dict)
    """cores, memory_gb, system_disk_gb, data_disk_gb."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Figures that checks hold measurements against, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What the image is for, as added wheels."""

    id: str
    requirements: tuple[str, ...] = ()
    """PEP 508; a flavour that has some has a lock of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One image: everything a build needs to know, decided."""

    release: Release
    accelerator: Accelerator
    gpu: Gpu
    flavour: Flavour
    base: Base
    required: tuple[str, ...]
    """Globs over check ids that must pass; what is not applicable to the row is never required."""
    arch: str = "x86_64"

    @property
    def id(self) -> str:
        """`<release>-<accelerator>[-<gpu>][-<flavour>]`, for example `torch25-cu124`."""
        parts = [self.release.id, self.accelerator.id]
        parts += [] if self.gpu.id == "generic" else [self.gpu.id]
        parts += [] if self.flavour.id == "runtime" else [self.flavour.id]
        return "-".join(parts)

    @property
    def gpu_archs(self) -> tuple[str, ...]:
        """What the image is for: the row's GPU, else everything in the wheels."""
        return (self.gpu.arch,) if self.gpu.arch else self.accelerator.archs

    @property
    def lock_name(self) -> str:
        """File name of the lock that this row shares with its variants, save flavours that add wheels."""
        flavour = f"-{self.flavour.id}" if self.flavour.requirements else ""
        return f"{self.release.id}-{self.accelerator.id}{flavour}-py{self.base.python}-{self.arch}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Rows stated together: every combination, less what is excluded."""

    releases: tuple[Release, ...]
    accelerators: tuple[Accelerator, ...]
    gpus: tuple[Gpu, ...]
    flavours: tuple[Flavour, ...]
    base: Base
    required: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Of the trio, what these rows go without."""
    exclude: tuple[str, ...] = ()
    """Ids and globs."""


def expand(stated: Product) -> tuple[Target, ...]:
    """Every target of a product, in the order in which its parts are written."""
    combinations = product(stated.releases, stated.accelerators, stated.gpus, stated.flavours)
    made = (
        Target(
            release=_less(release, stated.without),
            accelerator=accelerator,
            gpu=gpu,
            flavour=flavour,
            base=stated.base,
            required=stated.required,
        )
        for release, accelerator, gpu, flavour in combinations
    )
    return tuple(target for target in made if not _matches(target.id, stated.exclude))


def _less(release: Release, without: tuple[str, ...]) -> Release:
    return replace(
        release,
        torchvision="" if "torchvision" in without else release.torchvision,
        torchaudio="" if "torchaudio" in without else release.torchaudio,
    )


def _matches(identifier: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(identifier, pattern) for pattern in patterns)


def select(targets: Sequence[Target], patterns: Sequence[str]) -> tuple[Target, ...]:
    """Targets that an id or glob names, in matrix order; no patterns select all.

    Raises UnknownTargetError for each pattern that names none, with the nearest id.
    """
    unknown = [pattern for pattern in patterns if not any(_matches(target.id, [pattern]) for target in targets)]
    if unknown:
        raise UnknownTargetError(
            f"no target is named {' or '.join(unknown)}",
            where="matrix.yaml",
            remedy=_nearest(unknown[0], [target.id for target in targets]),
        )
    return tuple(target for target in targets if not patterns or _matches(target.id, patterns))


def _nearest(wanted: str, ids: list[str]) -> str:
    near = get_close_matches(wanted, ids, n=1, cutoff=0.4)
    return f"--target {near[0]}" if near else "./inv matrix lists them all"
