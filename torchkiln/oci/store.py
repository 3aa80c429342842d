"""An OCI image layout on disk (image-layout.md): `put` is atomic and idempotent, readers never see a part."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchkiln import room
from torchkiln.errors import ROW, StoreError
from torchkiln.home import write_atomically
from torchkiln.oci import digest as digests
from torchkiln.oci.digest import Digest
from torchkiln.oci.image import (
    REF_NAME,
    Descriptor,
    Image,
    config_bytes,
    index_bytes,
    layout_bytes,
    manifest_bytes,
    manifest_descriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO


_LIBC = ctypes.CDLL(None)
_STRETCH = 1 << 24
"""Bytes after which the kernel is told to begin writing to the disk, so that fsync at the end waits for little."""
_SYNC_FILE_RANGE_WRITE = 2
_GATHERED = 1 << 16
"""Bytes that small writes gather to; what is larger passes without being copied."""


class BlobWriter:
    """A write-only file that hashes what passes; the blob appears under its digest on `commit`."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._sha256 = hashlib.sha256()
        self._begun = 0
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        self._sha256.update(data)
        self.size += len(data)
        count = self._file.write(data)
        if self.size - self._begun >= _STRETCH:
            self._begin_writing()
        return count

    def _begin_writing(self) -> None:
        """Only a hint (sync_file_range(2)): commit waits for everything, whatever came of it."""
        begin, length = ctypes.c_int64(self._begun), ctypes.c_int64(self.size - self._begun)
        _LIBC.sync_file_range(self._file.fileno(), begin, length, _SYNC_FILE_RANGE_WRITE)
        self._begun = self.size

    @property
    def digest(self) -> Digest:
        """Of what was written so far."""
        return Digest("sha256:" + self._sha256.hexdigest())

    def commit(self, media_type: str) -> Descriptor:
        """Make the blob visible, in place of what is already there: a copy that was damaged on this disk is mended."""
        digest = self.digest
        self._file.flush()
        os.fchmod(self._file.fileno(), 0o644)
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.replace(self._path.with_name(digests.encoded(digest)))
        return Descriptor(media_type=media_type, digest=digest, size=self.size)


@dataclass(frozen=True, slots=True)
class Store:
    """A folder with `oci-layout`, `index.json` and `blobs/sha256/`."""

    root: Path

    @property
    def blobs(self) -> Path:
        """Where sha256 blobs lie."""
        return self.root / "blobs" / "sha256"

    @property
    def uploads(self) -> Path:
        """Where `oci.unfinished` notes which blobs are half in a registry; not part of the layout."""
        return self.root / ".uploads"

    def path(self, digest: Digest) -> Path:
        """Where a blob lies or would lie."""
        return self.blobs / digests.encoded(digest)

    def has(self, descriptor: Descriptor) -> bool:
        """Whether a blob of that digest and size is there; content is checked by `oci.verify`."""
        try:
            return self.path(descriptor.digest).stat().st_size == descriptor.size
        except FileNotFoundError:
            return False

    def open(self, digest: Digest) -> BinaryIO:
        """Read a blob; StoreError if it is missing."""
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError as error:
            raise StoreError(f"blob {digest} is missing", where=str(self.root), remedy=f"./inv build {ROW}") from error

    def read(self, digest: Digest) -> bytes:
        """A small blob as a whole."""
        with self.open(digest) as stream:
            return stream.read()

    @contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Begin a blob; leaving without `commit` removes what was written. HostError if the disk is full.

        The name is known before the file is made, so a signal that raises at any instant leaves nothing.
        """
        self.blobs.mkdir(parents=True, exist_ok=True)
        path = self.blobs / f".partial-{secrets.token_hex(8)}"
        try:
            with room.told(self.blobs, "layers are written"), path.open("xb", buffering=_GATHERED) as file:
                yield BlobWriter(path, file)
        finally:
            path.unlink(missing_ok=True)

    def put(self, data: bytes, media_type: str) -> Descriptor:
        """Store a small blob."""
        with self.writer() as writer:
            writer.write(data)
            return writer.commit(media_type)

    def expect(self, blobs: Iterable[Descriptor]) -> None:
        """HostError if the disk can't hold those of these blobs that are not here."""
        missing = {blob.digest: blob.size for blob in blobs if not self.has(blob)}
        self.blobs.mkdir(parents=True, exist_ok=True)
        room.check(self.blobs, sum(missing.values()), "the layers")

    def discard(self, digest: Digest) -> None:
        """Remove a blob, if it is there: whoever needs it finds it missing and makes it anew."""
        self.path(digest).unlink(missing_ok=True)

    def put_image(self, image: Image, ref: str) -> Descriptor:
        """Store config and manifest, then let `ref` name them; StoreError if a layer is missing."""
        missing = [layer.descriptor.digest for layer in image.layers if not self.has(layer.descriptor)]
        if missing:
            raise StoreError(
                f"{len(missing)} layers of {ref} are missing: {', '.join(missing[:3])}", where=str(self.root)
            )
        self.put(config_bytes(image), "")
        self.put(manifest_bytes(image), "")
        descriptor = manifest_descriptor(image)
        self.tag(ref, descriptor)
        return descriptor

    def tag(self, ref: str, descriptor: Descriptor) -> None:
        """Let `ref` name a manifest, instead of whatever it named before."""
        with self._locked():
            kept = [entry for entry in self._entries() if entry.annotations.get(REF_NAME) != ref]
            named = Descriptor(
                media_type=descriptor.media_type,
                digest=descriptor.digest,
                size=descriptor.size,
                annotations={REF_NAME: ref},
            )
            self._write_index([*kept, named])

    def untag(self, ref: str) -> None:
        """Forget a name, if it is there; blobs stay until they are collected."""
        with self._locked():
            self._write_index([entry for entry in self._entries() if entry.annotations.get(REF_NAME) != ref])

    def refs(self) -> dict[str, Descriptor]:
        """Every name and the manifest it stands for; StoreError if index.json is damaged."""
        return {entry.annotations[REF_NAME]: entry for entry in self._entries() if REF_NAME in entry.annotations}

    def _entries(self) -> list[Descriptor]:
        try:
            document: dict[str, Any] = json.loads((self.root / "index.json").read_bytes())
            return [Descriptor.from_json(entry) for entry in document["manifests"]]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                "index.json is not an OCI image index: the names of built images are lost, their layers are not",
                where=str(self.root / "index.json"),
                remedy="delete it and build those targets again, before any ./inv gc: layers are found, not remade",
            ) from error

    def _write_index(self, entries: list[Descriptor]) -> None:
        ordered = sorted(entries, key=lambda entry: entry.annotations.get(REF_NAME, ""))
        write_atomically(self.root / "oci-layout", layout_bytes())
        write_atomically(self.root / "index.json", index_bytes(ordered))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
