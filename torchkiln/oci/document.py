"""Manifests and configs of any image, parsed once: manifest.md, config.md, and Docker's own earlier forms."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchkiln.errors import ImageError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import REF_NAME, Config, Descriptor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchkiln.oci.digest import Digest


MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""What reading a document of another shape raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an image consists of."""

    media_type: str
    schema: int
    config: Descriptor
    layers: tuple[Descriptor, ...]
    name: str
    """What it says it is called, by the annotation `REF_NAME`; mostly empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An image config: how to run the image, and which tars its layers hold."""

    config: Config
    diff_ids: tuple[Digest, ...]
    history: tuple[str, ...]
    """`created_by` of each step that made a layer."""
    stated_history: bool
    """History is optional (config.md)."""


def manifest(data: bytes) -> Manifest:
    """Parse a manifest; ImageError for anything else, and for what is an index too."""
    try:
        found: Mapping[str, Any] = json.loads(data)
        _sole(found, "manifests")
        return Manifest(
            media_type=str(found.get("mediaType", "")),
            schema=int(found["schemaVersion"]),
            config=Descriptor.from_json(found["config"]),
            layers=tuple(Descriptor.from_json(layer) for layer in found["layers"]),
            name=str((found.get("annotations") or {}).get(REF_NAME) or ""),
        )
    except MALFORMED as error:
        raise ImageError(f"not an image manifest: {error!r}") from error


def index(data: bytes) -> tuple[Descriptor, ...]:
    """The manifests that an image index lists; ImageError for anything else, and for what is a manifest too."""
    return tuple(blob for blob, _ in images(data))


def images(data: bytes) -> tuple[tuple[Descriptor, Mapping[str, Any]], ...]:
    """As `index`, each with what it says of the platform that it is for."""
    try:
        found: Mapping[str, Any] = json.loads(data)
        _sole(found, "config", "layers")
        return tuple((Descriptor.from_json(entry), dict(entry.get("platform") or {})) for entry in found["manifests"])
    except MALFORMED as error:
        raise ImageError(f"not an image index: {error!r}") from error


def _sole(found: Mapping[str, Any], *others: str) -> None:
    """ImageError for a document that two readers could take for two images, by the type that it is served as."""
    if both := [name for name in others if name in found]:
        raise ImageError(f"a document with {' and '.join(both)} that is also something else")


def document(data: bytes) -> Document:
    """Parse an image config; ImageError for anything else."""
    try:
        found: Mapping[str, Any] = json.loads(data)
        steps = found.get("history") or []
        return Document(
            config=_config(found),
            diff_ids=tuple(digests.parse(str(diff_id)) for diff_id in found["rootfs"]["diff_ids"]),
            history=tuple(str(step.get("created_by", "")) for step in steps if not step.get("empty_layer")),
            stated_history=bool(steps),
        )
    except MALFORMED as error:
        raise ImageError(f"not an image config: {error!r}") from error


def _config(found: Mapping[str, Any]) -> Config:
    """Absent and null are the same in what Docker writes."""
    runtime: Mapping[str, Any] = found.get("config") or {}
    return Config(
        env=dict(str(variable).partition("=")[::2] for variable in runtime.get("Env") or ()),
        entrypoint=_words(runtime.get("Entrypoint")),
        command=_words(runtime.get("Cmd")),
        user=str(runtime.get("User") or ""),
        working_dir=str(runtime.get("WorkingDir") or ""),
        labels={str(name): str(value) for name, value in (runtime.get("Labels") or {}).items()},
        stop_signal=str(runtime.get("StopSignal") or ""),
        architecture=str(found["architecture"]),
        created=str(found.get("created") or Config().created),
    )


def _words(value: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError("a command must be a list")
    return tuple(str(word) for word in value or ())
