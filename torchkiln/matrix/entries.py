"""Entries of matrix.yaml → the values that they state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchkiln.matrix import extra
from torchkiln.matrix.publishing import PublishTarget
from torchkiln.matrix.target import Accelerator, Base, Flavour, Gpu, Product, Release
from torchkiln.oci import compression

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchkiln.matrix.document import (
        AcceleratorEntry,
        BaseEntry,
        FlavourEntry,
        GpuEntry,
        ProductEntry,
        PublishEntry,
        ReleaseEntry,
    )
    from torchkiln.matrix.forms import Threshold
    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Extra


def base(name: str, entry: BaseEntry) -> Base:
    """A base."""
    stated: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry}
    return Base(id=name, **stated)


def release(name: str, entry: ReleaseEntry) -> Release:
    """A release."""
    return Release(
        id=name,
        torch=entry.torch,
        torchvision=entry.torchvision or "",
        torchaudio=entry.torchaudio or "",
        companions=tuple(entry.companions),
    )


def accelerator(name: str, entry: AcceleratorEntry) -> Accelerator:
    """An accelerator as stated; what the facts know of it depends on the release."""
    return Accelerator(id=name, kind=entry.kind, version=entry.version or "")


def gpu(name: str, entry: GpuEntry, thresholds: Mapping[Threshold, float]) -> Gpu:
    """A GPU, with the thresholds of all of them below its own."""
    return Gpu(
        id=name,
        arch=entry.arch,
        memory_gb=entry.memory_gb,
        driver=entry.driver or "",
        run_options=tuple(entry.run_options),
        sizing=entry.sizing.model_dump(exclude_defaults=True),
        thresholds={name: float(value) for name, value in {**thresholds, **entry.thresholds}.items()},
    )


def flavour(name: str, entry: FlavourEntry, accelerator: str) -> Flavour:
    """What the flavour adds for an accelerator; where it states some, it can't be had for the others."""
    missing = entry.accelerators and accelerator not in entry.accelerators
    return Flavour(
        id=name,
        requirements=(*entry.requirements, *entry.accelerators.get(accelerator, [])),
        packages=tuple(entry.packages),
        unavailable=f"it is stated for {', '.join(entry.accelerators)} only" if missing else "",
    )


def product(entry: ProductEntry, parts: Matrix, required: list[str], folder: Path) -> Product:
    """Rows stated together; `parts` are what the other sections declare."""
    return Product(
        releases=tuple(parts.releases[name] for name in entry.releases),
        accelerators=tuple(parts.accelerators[name] for name in entry.accelerators),
        gpus=tuple(parts.gpus[name] for name in entry.gpus),
        flavours=tuple(parts.flavours[name] for name in entry.flavours),
        bases=tuple(parts.bases[name] for name in entry.bases),
        required=tuple(entry.required if entry.required is not None else required),
        without=tuple(entry.without),
        exclude=tuple(entry.exclude),
        arch=entry.arch,
        extra=additions(entry, folder),
        compression=compression.parse(entry.compression),
    )


def publish_target(name: str, entry: PublishEntry) -> PublishTarget:
    """What `--for` names."""
    return PublishTarget(
        id=name,
        compression=compression.parse(entry.compression) if entry.compression else None,
        max_layer_bytes=entry.max_layer_bytes,
        max_layers=entry.max_layers,
    )


def additions(entry: ProductEntry, folder: Path) -> Extra | None:
    """Additions of a product; MatrixError for a file that cannot be used."""
    return extra.read(folder / entry.extra) if entry.extra else None
