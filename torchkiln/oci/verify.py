"""Recompute everything an image says about itself, and report every mismatch, expected and actual.

The checks are those of go-containerregistry's `validate`, and of layer.md that no path is in a layer twice.
"""

from __future__ import annotations

import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torchkiln.errors import ImageError, StoreError
from torchkiln.oci import content
from torchkiln.oci import digest as digests
from torchkiln.oci import document as documents
from torchkiln.oci.digest import Digest
from torchkiln.oci.image import MANIFEST_TYPE, ZSTD_TYPE, Image, manifest_descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from io import BufferedReader

    from torchkiln.oci.image import Descriptor
    from torchkiln.oci.store import Store

_T = TypeVar("_T")
SCHEMA = 2
"""Of every manifest (manifest.md, schemaVersion)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One thing that is not as stated."""

    what: str
    where: str
    """Digest of the blob."""
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.actual} ({self.where})"


def verify(store: Store, subject: str | Image | Descriptor) -> tuple[Mismatch, ...]:
    """Everything wrong with an image, given by name, manifest or value; StoreError if no image has that name."""
    found: list[Mismatch] = []
    if isinstance(subject, Image):
        sizes = {layer.descriptor.digest: layer.unpacked_size for layer in subject.layers}
        _image(store, manifest_descriptor(subject), sizes, found)
        return tuple(found)
    if isinstance(subject, str):
        names = store.refs()
        if subject not in names:
            remedy = f"one of {', '.join(sorted(names))}" if names else "build it first"
            raise StoreError(f"no image is named {subject}", where=str(store.root), remedy=remedy)
        subject = names[subject]
    _image(store, subject, {}, found)
    return tuple(found)


def lying(found: Iterable[Mismatch]) -> frozenset[Digest]:
    """Blobs whose bytes are not those of their name; what merely disagrees about a sound blob is not among them."""
    return frozenset(
        Digest(one.where) for one in found if one.what.startswith("digest of ") and one.actual != one.where
    )


def _image(store: Store, descriptor: Descriptor, sizes: Mapping[Digest, int], found: list[Mismatch]) -> None:
    manifest = _parsed(store, descriptor, "manifest", documents.manifest, found)
    if manifest is None:
        return
    config = _parsed(store, manifest.config, "config", documents.document, found)
    diff_ids = config.diff_ids if config else ()
    stated = [
        ("schemaVersion", descriptor, SCHEMA, manifest.schema),
        ("mediaType of the manifest", descriptor, descriptor.media_type, manifest.media_type or descriptor.media_type),
    ]
    if config:
        stated.append(("number of diff_ids", manifest.config, len(manifest.layers), len(diff_ids)))
    if config and config.stated_history:
        made = len(config.history)
        stated.append(("number of history entries with a layer", manifest.config, len(manifest.layers), made))
    found += [_mismatch(what, blob, wanted, actual) for what, blob, wanted, actual in stated if wanted != actual]

    if any(layer.media_type == ZSTD_TYPE for layer in manifest.layers):  # Docker's own manifests have no such type
        kind = manifest.media_type or descriptor.media_type
        found += [_mismatch("mediaType of a manifest with zstd layers", descriptor, MANIFEST_TYPE, kind)] * (
            kind != MANIFEST_TYPE
        )

    def check(number: int) -> list[Mismatch]:
        diff_id = diff_ids[number] if number < len(diff_ids) else None
        return _layer(store, f"layer {number}", manifest.layers[number], diff_id, sizes)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for of_layer in pool.map(check, range(len(manifest.layers))):
            found += of_layer


def _mismatch(what: str, blob: Descriptor, expected: object, actual: object) -> Mismatch:
    return Mismatch(what=what, where=blob.digest, expected=str(expected), actual=str(actual))


def _parsed(
    store: Store, blob: Descriptor, name: str, parse: Callable[[bytes], _T], found: list[Mismatch]
) -> _T | None:
    try:
        data = store.read(blob.digest)
    except StoreError:
        found.append(_mismatch(name, blob, "in the store", "missing"))
        return None
    found += _identity(name, blob, digests.of_bytes(data), len(data))
    try:
        return parse(data)
    except ImageError as error:
        found.append(_mismatch(name, blob, "a JSON document of that kind", error.what))
        return None


def _identity(name: str, blob: Descriptor, digest: Digest, size: int) -> list[Mismatch]:
    stated = ((f"digest of {name}", blob.digest, digest), (f"size of {name}", blob.size, size))
    return [_mismatch(what, blob, expected, actual) for what, expected, actual in stated if expected != actual]


def _layer(
    store: Store, name: str, blob: Descriptor, diff_id: Digest | None, sizes: Mapping[Digest, int]
) -> list[Mismatch]:
    """One pass over the blob: its own digest, and that of the tar inside."""
    try:
        raw = store.open(blob.digest)
    except StoreError:
        return [_mismatch(name, blob, "in the store", "missing")]
    found: list[Mismatch] = []
    with raw:
        seen = _Hashed(cast("BufferedReader", raw))
        packed: io.BufferedReader = io.BufferedReader(seen, digests.CHUNK)
        try:
            found += _form(name, blob, content.form(packed))
            with content.tar_in(packed) as tar:
                found += _paths(name, blob, tar)
                actual = tar.finish()
            if diff_id not in (None, actual):
                found.append(_mismatch(f"diff_id of {name}", blob, diff_id, actual))
            if sizes.get(blob.digest, tar.size) != tar.size:
                found.append(_mismatch(f"unpacked size of {name}", blob, sizes[blob.digest], tar.size))
        except ImageError as error:
            found.append(_mismatch(name, blob, "a tar that can be read", error.what))
        return [*_identity(name, blob, *seen.finish()), *found]


def _form(name: str, blob: Descriptor, form: str) -> list[Mismatch]:
    """Readers go by the type or by the bytes: for zstd both must say so; engines are lax about gzip and plain tars."""
    return [_mismatch(f"mediaType of {name}", blob, blob.media_type, form)] * (
        (blob.media_type == ZSTD_TYPE) != (form == ZSTD_TYPE)
    )


def _paths(name: str, blob: Descriptor, tar: content.TarStream) -> list[Mismatch]:
    """Paths that come twice, and unsafe ones."""
    found: list[Mismatch] = []
    paths: set[tuple[str, ...]] = set()
    for member, _ in tar.members():
        try:
            path = content.parts(member.name)
        except ImageError as error:
            found.append(_mismatch(f"a path of {name}", blob, "below the root", error.what))
            continue
        if path in paths:
            found.append(_mismatch(f"entries for {member.name!r} in {name}", blob, 1, "more"))
        paths.add(path)
    return found


class _Hashed(io.RawIOBase):
    """A file that hashes what is read from it; it is read from the beginning, once."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  any writable buffer
        count = self._file.readinto(buffer)
        self._sha256.update(memoryview(buffer)[:count])
        self._size += count
        return count

    def finish(self) -> tuple[Digest, int]:
        """Digest and size of the whole, read to its end."""
        while self.readinto(bytearray(digests.CHUNK)):
            pass
        return Digest("sha256:" + self._sha256.hexdigest()), self._size
