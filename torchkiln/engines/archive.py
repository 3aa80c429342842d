"""An image as the tar that `docker load` takes, made while it is sent.

The hybrid form: `manifest.json` for engines since 20.10, `index.json` for those with containerd's image store, and
the same blobs for both.
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

from torchkiln.oci import digest as digests
from torchkiln.oci.image import (
    REF_NAME,
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
    from torchkiln.oci.image import Image
    from torchkiln.oci.store import Store


def stream(image: Image, store: Store, tags: Sequence[str]) -> Iterator[bytes]:
    """The tar in pieces of at most 1 MiB; layers are read from the store as they are needed."""
    config, manifest = config_bytes(image), manifest_bytes(image)
    layers = {layer.descriptor.digest: layer.descriptor for layer in image.layers}
    listed = {
        "Config": _path(digests.of_bytes(config)),
        "RepoTags": list(tags) or None,
        "Layers": [_path(layer.descriptor.digest) for layer in image.layers],
    }
    for name, content in (
        ("oci-layout", layout_bytes()),
        ("index.json", _index(image, tags)),
        ("manifest.json", canonical([listed])),
        (_path(digests.of_bytes(config)), config),
        (_path(digests.of_bytes(manifest)), manifest),
    ):
        yield _header(name, len(content)) + content + _padding(len(content))
    for descriptor in layers.values():
        yield _header(_path(descriptor.digest), descriptor.size)
        with store.open(descriptor.digest) as blob:
            while piece := blob.read(digests.CHUNK):
                yield piece
        yield _padding(descriptor.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


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
