"""The layer index of a repository: each key of a layer is a tag there, whose tiny manifest names the blob.

Such a manifest is an artifact (image-spec 1.1, manifest.md, "Guidelines for Artifact Usage"): its config is the empty
descriptor, its one layer is the layer. Whoever may write to the repository may write entries: what one says is only
a claim, and nothing but exactly what `record` writes is read at all.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING

import httpx

from torchkiln import console
from torchkiln.errors import ImageError, PlanError
from torchkiln.oci import digest as digests
from torchkiln.oci.answer import bounded
from torchkiln.oci.document import MALFORMED
from torchkiln.oci.image import LAYER_TYPE, MANIFEST_TYPE, PLAIN_TYPE, ZSTD_TYPE, Descriptor, Layer, canonical
from torchkiln.oci.pull import LARGEST_LAYER, LARGEST_TAR
from torchkiln.oci.reference import LAYER
from torchkiln.oci.upload import send

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchkiln.oci.registry import Registry

ARTIFACT_TYPE = "application/vnd.torchkiln.layer.v1"
"""Says what such a manifest is for, since its config is empty (manifest.md, artifactType)."""
EMPTY = b"{}"
EMPTY_CONFIG = Descriptor(
    media_type="application/vnd.oci.empty.v1+json", digest=digests.of_bytes(EMPTY), size=len(EMPTY)
)
"""manifest.md, "Guidance for an Empty Descriptor"."""
KEY, DIFF_ID, UNPACKED, TITLE = (f"org.torchkiln.layer.{name}" for name in ("key", "diff-id", "unpacked-size", "title"))
LARGEST_ENTRY = 16 << 10
"""Bytes; ours have one or two thousand."""
LONGEST_TITLE = 500
LAYER_TYPES = (LAYER_TYPE, PLAIN_TYPE, ZSTD_TYPE)
_KEY = re.compile(r"[a-z]+(?:-[0-9][0-9a-z.]{0,15})?-[0-9a-f]{64}(?:\.[a-z0-9-]{1,30})?")
"""That of a spec, with a version or a compression; it fits into a tag (distribution-spec, "Pulling manifests")."""


def tag(key: str) -> str:
    """The tag that stands for a key; PlanError for what is none."""
    if not _KEY.fullmatch(key):
        raise PlanError(f"not a layer's key: {key[:200]!r}")
    return f"{LAYER}{key}"


def entry(key: str, layer: Layer) -> bytes:
    """The manifest that names a layer."""
    said = {KEY: key, DIFF_ID: str(layer.diff_id), UNPACKED: str(layer.unpacked_size), TITLE: layer.title}
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": EMPTY_CONFIG.to_json(),
            "layers": [layer.descriptor.to_json()],
            "annotations": said,
        }
    )


def parse(data: bytes, key: str) -> Layer:
    """The layer that a manifest claims to be that of a key; ImageError unless it is an entry to the last byte."""
    try:
        found = json.loads(data)
        (blob,), said = found["layers"], found["annotations"]
        layer = Layer(
            descriptor=Descriptor.from_json(blob),
            diff_id=digests.parse(said[DIFF_ID]),
            unpacked_size=int(said[UNPACKED]),
            title=str(said[TITLE]),
        )
        same = entry(key, layer) == data
    except MALFORMED as error:
        raise ImageError(f"not an entry of a layer index: {type(error).__name__}") from error
    if not same:
        raise ImageError("it says other things than an entry for that key does")
    _possible(layer)
    return layer


def _possible(layer: Layer) -> None:
    """ImageError for what no layer is."""
    blob = layer.descriptor
    wrong = [f"type {blob.media_type[:100]!r}"] if blob.media_type not in LAYER_TYPES else []
    wrong += [f"{blob.size} bytes"] if not 0 < blob.size <= LARGEST_LAYER else []
    wrong += [f"{layer.unpacked_size} bytes unpacked"] if not 0 < layer.unpacked_size <= LARGEST_TAR else []
    wrong += ["annotations"] if blob.annotations else []  # they would get into the image's manifest
    wrong += ["such a title"] if not layer.title.isprintable() or len(layer.title) > LONGEST_TITLE else []
    if wrong:
        raise ImageError(f"no layer of ours has {', '.join(wrong)}")


def record(registry: Registry, key: str, layer: Layer) -> bool:
    """Let the repository's index name a layer whose blob is there already; whether that was new, as `record_all`."""
    return bool(record_all(registry, {key: layer}))


def record_all(registry: Registry, layers: Mapping[str, Layer]) -> int:
    """Let the repository's index name layers, by their keys, whose blobs are there already; how many were new.

    What is there is replaced, unless it is the same. The registry's failure if it refuses.
    """
    send(registry, EMPTY_CONFIG, lambda start, stop: iter((EMPTY[start:stop],)))
    with registry.threads() as pool:
        return sum(pool.map(lambda pair: _recorded(registry, *pair), sorted(layers.items())))


def _recorded(registry: Registry, key: str, layer: Layer) -> bool:
    """Whether an entry had to be written: a registry may have tags that can't be, and tells others of each that was."""
    data, address = entry(key, layer), f"{registry.reference.address}/manifests/{tag(key)}"

    def written() -> bool:
        with registry.ask("HEAD", address, {"Accept": MANIFEST_TYPE}, good={200, 404}) as response:
            if response.headers.get("Docker-Content-Digest", "") == digests.of_bytes(data):
                return False
        with registry.ask("PUT", address, {"Content-Type": MANIFEST_TYPE}, content=data, good={200, 201, 202}):
            return True

    return registry.persist(f"index entry {key}", written)


def lookup(registry: Registry, keys: Iterable[str]) -> Mapping[str, Layer]:
    """What the repository's index claims for keys; one that is missing, or is no entry, is left out, the latter told.

    The registry's failure if it can't be asked.
    """
    wanted = sorted(set(keys))
    with registry.threads() as pool:
        found = pool.map(partial(_claimed, registry), wanted)
        return {key: layer for key, layer in zip(wanted, found, strict=True) if layer is not None}


def _claimed(registry: Registry, key: str) -> Layer | None:
    address = f"{registry.reference.address}/manifests/{tag(key)}"

    def ask() -> bytes | None:
        with registry.ask("GET", address, {"Accept": MANIFEST_TYPE}, good={200, 404}) as response:
            return bounded(response, LARGEST_ENTRY) if response.status_code == httpx.codes.OK else None

    try:
        data = registry.persist(f"index entry {key}", ask)
        return None if data is None else parse(data, key)
    except ImageError as error:
        console.warn(f"{registry.where}:{tag(key)} is not used: {error.what}")
        return None
