"""matrix.yaml as it is written: the models that pydantic holds it against.

They stay at this edge; inside Torchkiln a row is a Target.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from torchkiln.matrix.forms import (  # noqa: TC001  pydantic reads annotations when the models are made
    Amount,
    Arch,
    Below,
    Compressed,
    Figure,
    Image,
    InImage,
    LayerCount,
    Name,
    Names,
    Option,
    Package,
    Python,
    Requires,
    Suite,
    Threshold,
    Versioned,
)
from torchkiln.matrix.publishing import LAYER_LIMIT


class Strict(BaseModel):
    """No key that is not declared, no value of another type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class AnyBaseEntry(Strict):
    """What every one of `bases` states."""

    python: Python
    """The minor of its Python, for example '3.11'."""
    glibc: Versioned
    """Version of its C library: wheels for a newer one don't run on it."""
    default: bool = False
    """Whether ids leave this base out; exactly one does."""


class DebianEntry(AnyBaseEntry):
    """A userland of Debian or Ubuntu, assembled by mmdebstrap."""

    kind: Literal["debian"]
    """Assembled from the packages of an archive."""
    suite: Suite
    """Release of the distribution, for example bookworm."""
    packages: list[Package]
    """What is installed beside the essential packages."""
    components: list[Package] = ["main"]
    """Parts of the archive that are looked in."""
    mirror: str = ""
    """Where packages come from; empty: the client's default. A dated one never moves on."""
    keyring: str = ""
    """File with the archive's keys on the building machine; empty: the client's default for the suite."""


class RegistryEntry(AnyBaseEntry):
    """An image that is pulled."""

    kind: Literal["registry"]
    """Pulled by digest."""
    image: Image
    """HOST/REPOSITORY@sha256:…: a tag may move, a digest does not."""
    interpreter: InImage = "/usr/bin/python3"
    """Where its Python is, in the image."""


class DockerfileEntry(AnyBaseEntry):
    """An image that the Docker engine builds from images/<name>/Dockerfile."""

    kind: Literal["dockerfile"]
    """Built from images/<name>/Dockerfile."""
    interpreter: InImage = "/usr/bin/python3"
    """Where its Python is, in the image."""


BaseEntry = Annotated[DebianEntry | RegistryEntry | DockerfileEntry, Field(discriminator="kind")]


class ReleaseEntry(Strict):
    """One of `releases`."""

    torch: Versioned
    """Public version, without the accelerator's suffix."""
    torchvision: Versioned | None = None
    """Its pair; left out where rows go without."""
    torchaudio: Versioned | None = None
    """Its pair; left out where rows go without."""
    companions: list[Requires] = []
    """What no wheel declares but the image needs, or what has to be bounded (PEP 508)."""


class AcceleratorEntry(Strict):
    """One of `accelerators`."""

    kind: Literal["cuda", "rocm", "cpu"]
    """Whose toolkit the wheels were built with."""
    version: Versioned | None = None
    """Of CUDA or ROCm, for example '12.4'; left out for cpu."""
    run_options: list[Option] = []
    """Options of `docker run` that its images need."""


class SizingEntry(Strict):
    """Size of the hosts that a GPU row is meant for."""

    cores: Amount = 0
    """Of the CPU."""
    memory_gb: Amount = 0
    """Of the host."""
    system_disk_gb: Amount = 0
    """Holds images and containers."""
    data_disk_gb: Amount = 0
    """Holds data sets and checkpoints."""


class GpuEntry(Strict):
    """One of `gpus`."""

    arch: Arch = ""
    """For example sm_90 or gfx942; empty for a row that fits any."""
    memory_gb: Amount = 0
    """Of one device."""
    driver: Versioned | None = None
    """Driver that hosts of these rows are known to run."""
    run_options: list[Option] = []
    """Options of `docker run`, beside the accelerator's."""
    sizing: SizingEntry = SizingEntry()
    """Size of the hosts."""
    thresholds: dict[Threshold, Figure] = {}
    """Figures that checks hold measurements against, by name."""


class FlavourEntry(Strict):
    """One of `flavours`."""

    requirements: list[Requires] = []
    """Wheels that it adds for every accelerator (PEP 508)."""
    packages: list[Package] = []
    """Packages that it adds to the base; kind debian only."""
    accelerators: dict[Name, list[Requires]] = {}
    """What is added for each accelerator; where this is stated, the flavour can't be had for any other."""


class ValidationEntry(Strict):
    """What every row is held against unless it says otherwise."""

    required: Names = ["*"]
    """Globs over check ids; what does not apply to a row is never required."""
    thresholds: dict[Threshold, Figure] = {}
    """Figures that checks hold measurements against, by name; a GPU may state its own."""


class PublishEntry(Strict):
    """One of `publish_targets`."""

    compression: Compressed | None = None
    """Of layers: gzip, zstd or zstd:LEVEL; left out for the rows' own."""
    max_layer_bytes: Amount | None = None
    """What a layer's blob may have: larger wheels are split by files."""
    max_layers: LayerCount = LAYER_LIMIT
    """What an image may have, with those of its base; small wheels share layers."""


class ProductEntry(Strict):
    """One of `targets`."""

    releases: Names
    """Names of `releases`."""
    accelerators: Names
    """Names of `accelerators`."""
    gpus: Names = ["generic"]
    """Names of `gpus`; `generic` is left out of ids."""
    flavours: Names = ["runtime"]
    """Names of `flavours`; `runtime` is left out of ids."""
    bases: Names
    """Names of `bases`; the default one is left out of ids."""
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    """Machine, as `uname -m` says."""
    without: list[Literal["torchvision", "torchaudio"]] = []
    """Of the trio, what these rows go without."""
    required: Names | None = None
    """Globs over check ids, instead of those of `validation`."""
    exclude: list[str] = []
    """Ids and globs of rows that are not built; each must exclude something."""
    extra: Below = ""
    """A file of requirements that these rows add, relative to the matrix."""
    compression: Compressed = "gzip"
    """Of layers: gzip, zstd or zstd:LEVEL; a publish target may state another."""


class Document(Strict):
    """The whole file."""

    bases: dict[Name, BaseEntry]
    """Userlands below the wheels, by name."""
    releases: dict[Name, ReleaseEntry]
    """PyTorch releases, by name: what belongs together."""
    accelerators: dict[Name, AcceleratorEntry]
    """What wheels are built for, by name: cu124, rocm62, cpu."""
    gpus: dict[Name, GpuEntry]
    """Devices that rows are meant for, by name."""
    flavours: dict[Name, FlavourEntry]
    """What images are for, by name, as what is added."""
    validation: ValidationEntry = ValidationEntry()
    """What every row is held against."""
    publish_targets: dict[Name, PublishEntry] = {}
    """Where images may go, by name, as what is taken there; `build --for NAME`."""
    targets: Annotated[list[ProductEntry], Field(min_length=1)]
    """Products: every release with every accelerator, GPU, flavour and base."""
