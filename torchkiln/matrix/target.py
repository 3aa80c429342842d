"""A target: one row of the matrix, complete and frozen; its id, `expand`, `select`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING, Literal

from torchkiln.errors import UnknownTargetError
from torchkiln.matrix.publishing import ANY
from torchkiln.oci.compression import GZIP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torchkiln.matrix.publishing import PublishTarget
    from torchkiln.oci.compression import Compression

TRIO = ("torch", "torchvision", "torchaudio")
"""Released together, and built for an accelerator together."""
GENERIC, RUNTIME, ARCH = "generic", "runtime", "x86_64"
"""The GPU, flavour and architecture that ids leave out."""
DEVEL = "devel"
"""The flavour that compiles for the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The userland below the wheels, with its Python."""

    id: str
    """For example `bookworm`."""
    kind: Literal["debian", "registry", "dockerfile"]
    """Assembled by mmdebstrap, pulled by digest, or built by the Docker engine from images/<id>/Dockerfile."""
    python: str
    """Python minor, for example `3.11`."""
    glibc: str
    default: bool = False
    """Whether ids leave this base out."""
    flavour: str = ""
    """The flavour that added packages, if one did: another layer, with a package list of its own."""
    interpreter: str = "/usr/bin/python3"
    """Where the Python is, in the image."""
    suite: str = ""
    """Distribution release that mmdebstrap is asked for; kind debian."""
    packages: tuple[str, ...] = ()
    components: tuple[str, ...] = ("main",)
    """Parts of the archive that are looked in."""
    mirror: str = ""
    """Empty: the client's default; else a mirror, dated if it should never move on."""
    keyring: str = ""
    """File with the archive's keys on the building machine; empty: the client's default for the suite."""
    image: str = ""
    """HOST/REPOSITORY@sha256:…; kind registry."""

    @property
    def name(self) -> str:
        """Its id, and the flavour that made another layer of it."""
        return f"{self.id}-{self.flavour}" if self.flavour else self.id

    @property
    def lock_name(self) -> str:
        """File name of the list of what the base holds."""
        return f"base-{self.name}.txt"


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
    """Oldest driver that starts it, by minor-version compatibility; for ROCm the oldest that AMD tests it with."""
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
    driver_floor: str = ""
    """Oldest driver that knows the device, where that is newer than what an accelerator needs; from the facts."""
    run_options: tuple[str, ...] = ()
    """Options of `docker run`."""
    sizing: Mapping[str, int] = field(default_factory=dict)
    """cores, memory_gb, system_disk_gb, data_disk_gb."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Figures that checks hold measurements against, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What the image is for, as added wheels and packages."""

    id: str
    requirements: tuple[str, ...] = ()
    """PEP 508; what the flavour adds for this row's accelerator is among them."""
    packages: tuple[str, ...] = ()
    """Of the base's distribution."""
    unavailable: str = ""
    """Why the flavour can't be had for this row's accelerator, if it can't."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A user's own additions."""

    id: str
    """The stem of the requirements file."""
    requirements: tuple[str, ...]
    """PEP 508."""
    file: Path
    """The requirements file; its locks lie beside it."""


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
    arch: str = ARCH
    """Machine, as `uname -m` says."""
    extra: Extra | None = None
    oldest_glibc: str = ""
    """Of the rows that share its lock, where that is older than its base's."""
    compression: Compression = GZIP
    """Of its layers."""
    publish_target: PublishTarget = ANY
    """Where the image goes, and so what its layers may be."""

    @property
    def id(self) -> str:
        """`<release>-<accelerator>[-<gpu>][-<flavour>][-<base>][-<arch>][-with-<extra>]`.

        What is usual is left out: any GPU, flavour runtime, the default base, x86_64. For example `torch25-cu124`,
        `torch28-cu126-rtx4090d-devel-jammy`.
        """
        parts = [self.release.id, self.accelerator.id]
        parts += [] if self.gpu.id == GENERIC else [self.gpu.id]
        parts += [] if self.flavour.id == RUNTIME else [self.flavour.id]
        parts += [] if self.base.default else [self.base.id]
        parts += [] if self.arch == ARCH else [self.arch.replace("_", "")]
        parts += ["with", self.extra.id] if self.extra else []
        return "-".join(parts)

    @property
    def ref(self) -> str:
        """Its name in the store: `<id>[-for-<publish target>][-zstd<level>]`, for example `torch25-cu124-zstd3`.

        The same row has another digest for each publish target and compression, and one may be built beside another.
        """
        place = f"-for-{self.publish_target.id}" if self.publish_target.id else ""
        compressed = "" if self.compression == GZIP else f"-{str(self.compression).replace(':', '')}"
        return f"{self.id}{place}{compressed}"

    @property
    def driver_floor(self) -> str:
        """Oldest driver that starts the accelerator and knows the GPU; empty if none is needed."""
        return max(self.accelerator.driver_floor, self.gpu.driver_floor, key=_numbers)

    @property
    def gpu_archs(self) -> tuple[str, ...]:
        """What the image is for: the row's GPU, else everything in the wheels."""
        return (self.gpu.arch,) if self.gpu.arch else self.accelerator.archs

    @property
    def base_lock_name(self) -> str:
        """File name of the list of what the base holds on this architecture."""
        name = self.base.lock_name
        return name if self.arch == ARCH else f"{name.removesuffix('.txt')}-{self.arch}.txt"

    @property
    def wheel_glibc(self) -> str:
        """The C library that its wheels are chosen for: they fit every row that shares the lock."""
        return self.oldest_glibc or self.base.glibc

    @property
    def lock_name(self) -> str:
        """File name of the lock that rows of one release, accelerator, Python and architecture share."""
        return f"{self.release.id}-{self.accelerator.id}-py{self.base.python}-{self.arch}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Rows stated together: every combination, less what is excluded."""

    releases: tuple[Release, ...]
    accelerators: tuple[Accelerator, ...]
    gpus: tuple[Gpu, ...]
    flavours: tuple[Mapping[str, Flavour], ...]
    """Each as it is for every accelerator, by its id."""
    bases: tuple[Base, ...]
    required: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Of the trio, what these rows go without."""
    exclude: tuple[str, ...] = ()
    """Ids and globs."""
    arch: str = ARCH
    extra: Extra | None = None
    compression: Compression = GZIP


def expand(stated: Product) -> tuple[Target, ...]:
    """Every target of a product, in the order in which its parts are written."""
    return tuple(target for target in combinations(stated) if not _matches(target.id, stated.exclude))


def combinations(stated: Product) -> tuple[Target, ...]:
    """Every target of a product, before anything is excluded."""
    parts = product(stated.releases, stated.accelerators, stated.gpus, stated.flavours, stated.bases)
    return tuple(
        Target(
            release=_less(release, stated.without),
            accelerator=accelerator,
            gpu=gpu,
            flavour=flavours[accelerator.id],
            base=on(base, flavours[accelerator.id]),
            required=stated.required,
            arch=stated.arch,
            extra=stated.extra,
            compression=stated.compression,
        )
        for release, accelerator, gpu, flavours, base in parts
    )


def publishing(row: Target, place: PublishTarget = ANY, compression: Compression | None = None) -> Target:
    """A row made for a publish target; a compression that is asked for goes before the publish target's and its own."""
    return replace(row, publish_target=place, compression=compression or place.compression or row.compression)


def on(base: Base, flavour: Flavour) -> Base:
    """A base with the packages of a flavour."""
    if not flavour.packages:
        return base
    return replace(base, flavour=flavour.id, packages=(*base.packages, *flavour.packages))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


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
            f"no target is named {' or '.join(unknown)}", where="matrix.yaml", remedy=_remedy(unknown[0], targets)
        )
    return tuple(target for target in targets if not patterns or _matches(target.id, patterns))


def _remedy(wanted: str, targets: Sequence[Target]) -> str:
    """The nearest row; for one with additions that the matrix doesn't state, what names them."""
    below, _, added = wanted.partition("-with-")
    if added and any(_matches(target.id, [below]) for target in targets):
        return f"--target {shlex.quote(below)} --extra-requirements FILE, the file of that name ({added})"
    return _nearest(wanted, [target.id for target in targets])


def _nearest(wanted: str, ids: list[str]) -> str:
    near = get_close_matches(wanted, ids, n=1, cutoff=0.4)
    return f"--target {near[0]}" if near else "./inv matrix lists them all"
