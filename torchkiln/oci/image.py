"""Descriptors, layers and images as values; a change returns a new image.

Bytes of manifests and configs are canonical JSON (sorted keys, no spaces), so equal values have equal digests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torchkiln.errors import ImageError
from torchkiln.oci import digest as digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchkiln.oci.digest import Digest

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
PLAIN_TYPE = "application/vnd.oci.image.layer.v1.tar"
ZSTD_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
"""Of OCI manifests alone: Docker's own have no such type."""
REF_NAME = "org.opencontainers.image.ref.name"
"""The annotation by which an index, or a manifest itself, names an image (annotations.md); a label of ours, too."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Machines, as uname(2) calls them, by their names in configs (config.md, architecture)."""
HISTORY = "torchkiln: "
"""How each step of our images' history begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What a blob is, by type, digest and size in bytes (descriptor.md)."""

    media_type: str
    digest: Digest
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As in a manifest."""
        annotations = {"annotations": dict(self.annotations)} if self.annotations else {}
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size, **annotations}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Descriptor:
        """From a manifest or index; KeyError or ImageError when it is not one."""
        return Descriptor(
            media_type=str(data["mediaType"]),
            digest=digests.parse(str(data["digest"])),
            size=int(data["size"]),
            annotations=dict(data.get("annotations") or {}),
        )


EMPTY_TAR = 1024
"""Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A compressed blob and the digest (diff_id) and size of the tar inside it."""

    descriptor: Descriptor
    diff_id: Digest
    unpacked_size: int
    """Bytes of the tar."""
    title: str = ""
    """What it holds, for people: becomes `created_by` in the history."""

    @property
    def empty(self) -> bool:
        """Whether the tar has no members: it is two blocks of zeros then (POSIX pax, "ustar Interchange Format")."""
        return self.unpacked_size <= EMPTY_TAR

    def to_json(self) -> dict[str, Any]:
        """For the layer index."""
        return {
            "descriptor": self.descriptor.to_json(),
            "diff_id": self.diff_id,
            "unpacked_size": self.unpacked_size,
            "title": self.title,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Layer:
        """The inverse of `to_json`."""
        return Layer(
            descriptor=Descriptor.from_json(data["descriptor"]),
            diff_id=digests.parse(data["diff_id"]),
            unpacked_size=int(data["unpacked_size"]),
            title=str(data.get("title", "")),
        )


def recorded(entry: Mapping[str, Any] | None) -> Layer | None:
    """The layer of an index entry; None for one that is missing or damaged, so that the layer is made again."""
    try:
        return None if entry is None else Layer.from_json(entry)
    except (KeyError, TypeError, ValueError, ImageError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What an engine needs to run the image (config.md), in our own words."""

    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    working_dir: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_signal: str = ""
    architecture: str = "amd64"
    created: str = "1980-01-02T00:00:00Z"
    """RFC 3339; the layers' fixed time, so that equal inputs give equal bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A config and layers, lowest first."""

    config: Config
    layers: tuple[Layer, ...] = ()
    name: str = ""
    """What its manifest says it is called, by `REF_NAME`; empty where that is what its config says."""

    @property
    def compressed_size(self) -> int:
        """Bytes of all layer blobs."""
        return sum(layer.descriptor.size for layer in self.layers)

    @property
    def unpacked_size(self) -> int:
        """Bytes of all layer tars."""
        return sum(layer.unpacked_size for layer in self.layers)


def append(image: Image, layers: Sequence[Layer]) -> Image:
    """A new image with these layers on top."""
    return replace(image, layers=(*image.layers, *layers))


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no white space, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def layout_bytes() -> bytes:
    """The file `oci-layout` (image-layout.md)."""
    return canonical({"imageLayoutVersion": "1.0.0"})


def index_bytes(manifests: Iterable[Descriptor]) -> bytes:
    """The index document (image-index.md) of these manifests, in their order."""
    return canonical(
        {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [manifest.to_json() for manifest in manifests]}
    )


def config_bytes(image: Image) -> bytes:
    """The image config document (config.md); its sha256 is the image id."""
    config = image.config
    runtime: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in sorted(config.env.items())],
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "User": config.user,
        "WorkingDir": config.working_dir,
        "Labels": dict(config.labels),
        "StopSignal": config.stop_signal,
    }
    return canonical(
        {
            "created": config.created,
            "architecture": config.architecture,
            "os": "linux",
            "config": {name: value for name, value in runtime.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]},
            "history": [{"created": config.created, "created_by": f"{HISTORY}{layer.title}"} for layer in image.layers],
        }
    )


def manifest_bytes(image: Image) -> bytes:
    """The manifest document (manifest.md); its sha256 is the image's digest."""
    config = config_bytes(image)
    named = {"annotations": {REF_NAME: image.name}} if image.name else {}
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": Descriptor(media_type=CONFIG_TYPE, digest=digests.of_bytes(config), size=len(config)).to_json(),
            "layers": [layer.descriptor.to_json() for layer in image.layers],
            **named,
        }
    )


def manifest_descriptor(image: Image) -> Descriptor:
    """How an index refers to the image."""
    manifest = manifest_bytes(image)
    return Descriptor(media_type=MANIFEST_TYPE, digest=digests.of_bytes(manifest), size=len(manifest))
