"""Put an image or index of one registry into another, byte for byte: blobs streamed or mounted, the tag last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln import console
from torchkiln.errors import ImageError, PushError
from torchkiln.oci import digest as digests
from torchkiln.oci import document as documents
from torchkiln.oci.delivery import delivering
from torchkiln.oci.naming import name
from torchkiln.oci.passing import Passing
from torchkiln.oci.pull import LARGEST_LAYER
from torchkiln.oci.push import pushed
from torchkiln.oci.reference import at, parse
from torchkiln.oci.registry import INDEX_TYPES, MANIFEST_TYPES, connected
from torchkiln.oci.upload import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from torchkiln.oci.delivery import Delivery, Sleep
    from torchkiln.oci.document import Manifest
    from torchkiln.oci.image import Descriptor
    from torchkiln.oci.push import Pushed
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.upload import How

LARGEST_FAMILY = 64 << 20
"""Bytes of the manifests of an index, which are held against each other before any of it is copied."""


def copy(
    source: str,
    to: str,
    *,
    environment: Mapping[str, str],
    siblings: Sequence[str] = (),
    plain: Collection[str] = (),
    sleep: Sleep | None = None,
    chunk: int = CHUNK,
    notes: Path | None = None,
    accept: Callable[[Pushed], None] = lambda _: None,
) -> Pushed:
    """Put the image or index at `HOST/REPOSITORY@sha256:…` at `HOST/REPOSITORY[:TAG]`, byte for byte.

    Blobs are streamed; within one registry they are mounted if it allows that. In the folder `notes` stands where
    uploads broke off. `accept` hears of it when all is there but the tag: what it raises leaves none. Otherwise as
    `push`.
    """
    origin, place = parse(source), at(to, plain)
    origin = replace(origin, plain=origin.host in plain)
    if origin.host == place.host and origin.repository != place.repository:
        siblings = (origin.repository, *siblings)
    done: list[tuple[Descriptor, How]] = []
    with (
        connected(origin, environment, failure=PushError) as old,
        delivering(
            place, environment, failure=PushError, siblings=siblings, sleep=sleep, chunk=chunk, notes=notes, source=old
        ) as delivery,
        console.step(f"copy {source} to {to}"),
    ):
        if sleep:
            old.sleep = sleep
        data, media_type = old.manifest(origin.digest)
        for child, child_type in (*_children(old, data, media_type), (data, media_type)):
            if child_type in MANIFEST_TYPES:
                done = _deliver(old, delivery, documents.manifest(child))
            name(delivery.registry, digests.of_bytes(child), child, child_type)
        copied = pushed(place, origin.digest, done)
        accept(copied)
        name(delivery.registry, place.tag, data, media_type)
    return copied


def _deliver(old: Registry, delivery: Delivery, manifest: Manifest) -> list[tuple[Descriptor, How]]:
    """What was done for the blobs of the manifest and all before it; ImageError for sizes that no blob has."""
    blobs = sorted((*manifest.layers, manifest.config), key=lambda blob: -blob.size)
    wrong = [blob.digest for blob in blobs if not 0 <= blob.size <= LARGEST_LAYER]
    if wrong:
        raise ImageError(f"no blob has the size stated for {wrong[0]}", where=old.where)
    for blob in blobs:
        delivery.submit(blob, Passing(source=old, blob=blob))
    return delivery.wait()


def _children(registry: Registry, data: bytes, media_type: str) -> list[tuple[bytes, str]]:
    """The manifests of an index, none of a manifest; ImageError for anything else."""
    if media_type in MANIFEST_TYPES:
        return []
    if media_type not in INDEX_TYPES:
        raise ImageError(f"a manifest of type {media_type or 'unknown'}", where=registry.where)
    found: list[tuple[bytes, str]] = []
    for entry in documents.index(data):
        found.append(registry.manifest(entry.digest))
        if sum(len(child) for child, _ in found) > LARGEST_FAMILY:
            raise ImageError(f"an index of more than {LARGEST_FAMILY} bytes of manifests", where=registry.where)
    odd = sorted({kind for _, kind in found if kind not in MANIFEST_TYPES})
    if odd:
        raise ImageError(f"the index lists {', '.join(odd)}", where=registry.where, remedy="copy the images in it")
    return found
