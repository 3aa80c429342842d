"""What a registry serves of an image, held against its manifests: that all is there, and on request every byte."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchkiln.errors import HashMismatchError, VerifyError
from torchkiln.oci import document as documents
from torchkiln.oci.reference import parse
from torchkiln.oci.registry import INDEX_TYPES, connected

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Descriptor
    from torchkiln.oci.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What was looked at."""

    blobs: int
    read: int
    """Bytes of blobs that were hashed; 0 if only their sizes were asked for."""
    wrong: Mapping[Digest, str] = field(default_factory=dict)
    """Blobs that are not as stated, and what is wrong with them; nothing if all of it holds."""


AGAIN = "./inv push … --verify sends what is damaged there again"
KEPT = (
    "it was sent again, but the registry keeps the old bytes: its storage is damaged; whoever runs it must remove "
    "these blobs there, then push again"
)


def held(found: Served, where: str, remedy: str = AGAIN) -> Served:
    """VerifyError that names every blob that is not as stated."""
    if found.wrong:
        raise VerifyError("\n".join(found.wrong.values()), where=where, remedy=remedy)
    return found


def look(
    text: str,
    *,
    environment: Mapping[str, str],
    plain: Collection[str] = (),
    whole: bool = False,
    read: Collection[Digest] = (),
) -> Served:
    """Hold what is at `HOST/REPOSITORY@sha256:…` against its manifest, or each manifest of an index.

    Manifests are read and hashed; of blobs the registry is asked for the sizes, or with `whole`, and for the blobs of
    `read` in any case, for all bytes. FetchError if the registry can't be asked.
    """
    reference = parse(text)
    with connected(replace(reference, plain=reference.host in plain), environment) as registry:
        blobs = list(_listed(registry, reference.digest).values())
        with registry.threads() as pool:
            said = pool.map(lambda blob: _wrong(registry, blob, whole=whole or blob.digest in read), blobs)
            wrong = {blob.digest: words for blob, words in zip(blobs, said, strict=True) if words}
    return Served(blobs=len(blobs), read=sum(blob.size for blob in blobs) if whole else 0, wrong=wrong)


def _listed(registry: Registry, digest: Digest) -> dict[Digest, Descriptor]:
    """Every blob of a manifest, or of each manifest of an index."""
    data, media_type = registry.manifest(digest)
    if media_type not in INDEX_TYPES:
        found = documents.manifest(data)
        return {blob.digest: blob for blob in (*found.layers, found.config)}
    listed = [_listed(registry, entry.digest) for entry in documents.index(data)]
    return {digest: blob for blobs in listed for digest, blob in blobs.items()}


def _wrong(registry: Registry, blob: Descriptor, *, whole: bool) -> str:
    """What is wrong with a blob; empty if nothing."""
    size = registry.size(blob)
    if size is None:
        return f"{blob.digest} is missing"
    if size != blob.size:
        return f"{blob.digest} has {size} bytes, the manifest states {blob.size}"
    try:
        found = registry.reckon(blob) if whole else blob.digest
    except HashMismatchError as error:
        return error.what
    return "" if found == blob.digest else f"the registry serves {found} as {blob.digest}"
