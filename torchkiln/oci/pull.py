"""Pull an image by digest, for one machine; what manifest and config say is held against what comes."""

from __future__ import annotations

from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchkiln import console
from torchkiln.errors import HashMismatchError, ImageError
from torchkiln.oci import content
from torchkiln.oci import digest as digests
from torchkiln.oci import document as documents
from torchkiln.oci.answer import parsed
from torchkiln.oci.image import (
    ARCHITECTURES,
    CONFIG_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    PLAIN_TYPE,
    ZSTD_TYPE,
    Descriptor,
    Image,
    Layer,
)
from torchkiln.oci.reference import parse
from torchkiln.oci.registry import DOCKER, INDEX_TYPES, MANIFEST_TYPES, connected

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torchkiln.oci.digest import Digest
    from torchkiln.oci.document import Document, Manifest
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.store import Store

CONFIG_TYPES = (CONFIG_TYPE, f"{DOCKER}container.image.v1+json")
LAYER_TYPES = {
    LAYER_TYPE: LAYER_TYPE,
    PLAIN_TYPE: PLAIN_TYPE,
    ZSTD_TYPE: ZSTD_TYPE,
    f"{DOCKER}image.rootfs.diff.tar.gzip": LAYER_TYPE,
    f"{DOCKER}image.rootfs.diff.tar": PLAIN_TYPE,
}
"""What a layer may be called, and what the same bytes are called by OCI; none that lie elsewhere."""
LARGEST_CONFIG = 16 << 20
LARGEST_LAYER, LARGEST_TAR = 64 << 30, 256 << 30
"""Bytes, as it comes and unpacked."""
WORTH_TELLING = 4 << 20
"""Bytes of a layer that is told of when it has come."""
MOST_LAYERS = 127
"""Layers that any engine stacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """An image that is in the store, with all its layers."""

    image: Image
    manifest: Descriptor
    """As it was served, for one machine."""
    config: Digest
    """Of its config as it was served."""


def pull(
    text: str,
    store: Store,
    *,
    machine: str,
    environment: Mapping[str, str],
    plain: Collection[str] = (),
    sleep: Callable[[float], object] | None = None,
    accept: Callable[[Image], object] = lambda _: None,
) -> Pulled:
    """The image at `HOST/REPOSITORY@sha256:…` for a machine (`x86_64`), put into the store, its layers measured.

    Of an index, the one manifest for linux and the machine. `accept` hears of the image, without its layers, before any
    of them is asked for: what it raises ends the pull. FetchError if the registry can't be asked;
    HashMismatchError if it serves other bytes; ImageError for what is no image for that machine, or of no known form.
    """
    reference = parse(text)
    reference = replace(reference, plain=reference.host in plain)
    with connected(reference, environment, sleep) as registry:
        data, media_type = _chosen(registry, reference.digest, ARCHITECTURES[machine])
        manifest = replace(documents.manifest(data), media_type=media_type)
        _known_type(manifest.config.media_type, CONFIG_TYPES, "config", text)
        config = registry.document(manifest.config, LARGEST_CONFIG)
        document = documents.document(config)
        _check(config, document, manifest, ARCHITECTURES[machine], text)
        blobs = [replace(blob, media_type=LAYER_TYPES[blob.media_type]) for blob in manifest.layers]
        accept(Image(config=document.config, layers=(), name=manifest.name))
        store.expect(blobs)
        layers = _layers(registry, store, list(zip(blobs, document.diff_ids, strict=True)))
        store.put(config, "")
        named = store.put(data, media_type)
    image = Image(config=document.config, layers=layers, name=manifest.name)
    return Pulled(image=image, manifest=named, config=manifest.config.digest)


def _layers(registry: Registry, store: Store, wanted: Sequence[tuple[Descriptor, Digest]]) -> tuple[Layer, ...]:
    """Each is read as soon as it is there, while others come, the largest first; the first failure ends all."""
    largest = sorted(wanted, key=lambda pair: -pair[0].size)
    each = {(blob.digest, diff_id): blob for blob, diff_id in largest}  # an image may have a layer twice
    with registry.threads() as pool:
        jobs = {known: pool.submit(_layer, registry, store, blob, known[1]) for known, blob in each.items()}
        for number, done in enumerate(as_completed(jobs.values()), start=1):
            if (size := done.result().descriptor.size) >= WORTH_TELLING or number == len(jobs):
                console.note(f"{size / 1e6:.1f} MB ({number} of {len(jobs)})")
        return tuple(jobs[blob.digest, diff_id].result() for blob, diff_id in wanted)


def _layer(registry: Registry, store: Store, blob: Descriptor, diff_id: Digest) -> Layer:
    """HashMismatchError if it unpacks to something else than the config states."""
    found, size = measured(registry, store, blob, diff_id, limit=LARGEST_TAR)
    if found != diff_id:
        raise HashMismatchError(
            f"layer {blob.digest} unpacks to {found}, the config states {diff_id}", where=registry.where
        )
    return Layer(descriptor=blob, diff_id=diff_id, unpacked_size=size)


def measured(registry: Registry, store: Store, blob: Descriptor, diff_id: Digest, *, limit: int) -> tuple[Digest, int]:
    """The diff_id and size of the tar in a blob, which is brought unless it is here, or if what is here has rotted.

    `diff_id` is what they should be. ImageError for bytes that are the digest's, and no layer's all the same.
    """
    if store.has(blob):
        with suppress(ImageError):
            if (found := _read(store, blob, limit))[0] == diff_id:
                return found
        if digests.of_file(store.path(blob.digest))[0] != blob.digest:
            store.discard(blob.digest)
    registry.blob(blob, store)
    return _read(store, blob, limit)


def _read(store: Store, blob: Descriptor, limit: int) -> tuple[Digest, int]:
    with content.tar_of(store, blob.digest, limit=limit) as tar:
        return tar.finish(), tar.size


def _chosen(registry: Registry, digest: Digest, architecture: str) -> tuple[bytes, str]:
    """The manifest and its type; out of an index the one for the machine."""
    data, media_type = registry.manifest(digest)
    if media_type in INDEX_TYPES:
        try:
            images = documents.images(data)
        except ImageError as error:
            raise ImageError(error.what, where=registry.where) from error
        fit = [blob for blob, on in images if (on.get("os"), on.get("architecture")) == ("linux", architecture)]
        if len(fit) != 1:
            raise ImageError(f"the index has {len(fit)} images for linux/{architecture}", where=registry.where)
        data, media_type = registry.manifest(fit[0].digest)
    _known_type(media_type, MANIFEST_TYPES, "manifest", registry.where)
    return data, media_type


def _known_type(media_type: str, known: Sequence[str], what: str, where: str) -> None:
    if media_type not in known:
        raise ImageError(f"a {what} of type {media_type or 'unknown'}", where=where, remedy="choose an OCI image")


def _check(config: bytes, document: Document, manifest: Manifest, architecture: str, where: str) -> None:
    """What config and manifest say about the layers, before any of them is asked for; all of it at once."""
    system, layers = parsed(config).get("os"), manifest.layers
    wrong = [f"layer {number} is {each.media_type}, in a {manifest.media_type}" for number, each in _odd(manifest)]
    wrong += [f"layer {each.digest} has {each.size} bytes" for each in layers if not 0 < each.size <= LARGEST_LAYER]
    if (system, document.config.architecture) != ("linux", architecture):
        wrong.append(f"it is for {system}/{document.config.architecture}, not linux/{architecture}")
    if len(layers) != len(document.diff_ids) or not 0 < len(layers) <= MOST_LAYERS:
        wrong.append(f"{len(layers)} layers and {len(document.diff_ids)} diff_ids")
    if wrong:
        raise ImageError("; ".join(wrong), where=where, remedy="choose an OCI image, with layers in gzip or zstd form")


def _odd(manifest: Manifest) -> list[tuple[int, Descriptor]]:
    """Layers of no known form; Docker's manifests know no zstd."""
    known = LAYER_TYPES.keys() - (set() if manifest.media_type == MANIFEST_TYPE else {ZSTD_TYPE})
    return [(number, layer) for number, layer in enumerate(manifest.layers) if layer.media_type not in known]
