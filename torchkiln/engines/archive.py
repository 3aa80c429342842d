"""An image as the tar that `docker load` takes, made while it is sent.

The hybrid form: `manifest.json` for engines since 20.10, `index.json` for those with containerd's image store, and
the same blobs for both. Layers in zstd go unpacked, as `docker save` has them, to engines that may not read it: a plain
layer's digest is its diff_id, so nothing has to be computed, and config and image id stay the same.
"""

from __future__ import annotations

import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln.errors import ImageError
from torchkiln.oci import content
from torchkiln.oci import digest as digests
from torchkiln.oci.image import (
    PLAIN_TYPE,
    REF_NAME,
    ZSTD_TYPE,
    Descriptor,
    canonical,
    config_bytes,
    index_bytes,
    layout_bytes,
    manifest_bytes,
    manifest_descriptor,
)
from torchkiln.oci.reference import whole
from torchkiln.specs import LAYER_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Image, Layer
    from torchkiln.oci.store import Store


def plain(image: Image) -> Image:
    """The same image with its zstd layers unpacked: same config, another manifest."""
    return replace(image, layers=tuple(_plain(layer) for layer in image.layers))


def stream(image: Image, store: Store, tags: Sequence[str], *, zstd: bool = False) -> Iterator[bytes]:
    """The tar in pieces of at most 1 MiB; layers are read from the store as they are needed.

    Without `zstd` it is that of `plain(image)`. ImageError for a layer whose blob is not what it should be.
    """
    kept, image = image.layers, image if zstd else plain(image)
    config, manifest = config_bytes(image), manifest_bytes(image)
    layers = {layer.descriptor.digest: (layer, own) for layer, own in zip(image.layers, kept, strict=True)}
    listed = {
        "Config": _path(digests.of_bytes(config)),
        "RepoTags": list(tags) or None,
        "Layers": [_path(layer.descriptor.digest) for layer in image.layers],
    }
    for name, data in (
        ("oci-layout", layout_bytes()),
        ("index.json", _index(image, tags)),
        ("manifest.json", canonical([listed])),
        (_path(digests.of_bytes(config)), config),
        (_path(digests.of_bytes(manifest)), manifest),
    ):
        yield _header(name, len(data)) + data + _padding(len(data))
    for layer, own in layers.values():
        yield _header(_path(layer.descriptor.digest), layer.descriptor.size)
        yield from _blob(layer, own, store)
        yield _padding(layer.descriptor.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _plain(layer: Layer) -> Layer:
    if layer.descriptor.media_type != ZSTD_TYPE:
        return layer
    return replace(layer, descriptor=Descriptor(media_type=PLAIN_TYPE, digest=layer.diff_id, size=layer.unpacked_size))


def _blob(layer: Layer, kept: Layer, store: Store) -> Iterator[bytes]:
    """A layer's blob out of the one that the store has."""
    if layer == kept:
        with store.open(layer.descriptor.digest) as blob:
            while piece := blob.read(digests.CHUNK):
                yield piece
        return
    with content.tar_of(store, kept.descriptor.digest, limit=layer.unpacked_size) as tar:
        while piece := tar.read(digests.CHUNK):
            yield piece
        if tar.finish() != layer.diff_id or tar.size != layer.unpacked_size:
            raise ImageError(f"layer {kept.descriptor.digest} holds another tar than {layer.diff_id}")


def _path(digest: Digest) -> str:
    return f"blobs/sha256/{digests.encoded(digest)}"


def _index(image: Image, tags: Sequence[str]) -> bytes:
    """One entry per tag, by the annotations that containerd names an image after."""
    found = manifest_descriptor(image)
    named = [
        Descriptor(
            media_type=found.media_type,
            digest=found.digest,
            size=found.size,
            annotations={
                "io.containerd.image.name": whole(tag),
                REF_NAME: tag.rpartition(":")[2],
            },
        )
        for tag in tags
    ]
    return index_bytes(named or [found])


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, LAYER_TIME
    return member.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
