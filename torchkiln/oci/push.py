"""Put an image into a registry while it is made, or from the store: blobs, then the manifest, then the tag.

A tag never names something incomplete: it is set when the registry has all of the image and says so.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from torchkiln import console
from torchkiln.errors import ROW, PushError, StoreError
from torchkiln.oci import digest as digests
from torchkiln.oci import document as documents
from torchkiln.oci.delivery import delivering
from torchkiln.oci.image import CONFIG_TYPE, MANIFEST_TYPE, config_bytes, manifest_bytes
from torchkiln.oci.location import permitted
from torchkiln.oci.naming import name
from torchkiln.oci.passing import Passing
from torchkiln.oci.reference import at
from torchkiln.oci.registry import connected
from torchkiln.oci.upload import CHUNK

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from torchkiln.oci.delivery import Delivery, Sleep
    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Descriptor, Image, Layer
    from torchkiln.oci.reference import Destination
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.store import Store
    from torchkiln.oci.upload import How, Read

PIECE = 1 << 20
"""Bytes that are in memory at a time, for each connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What the registry has now."""

    name: str
    """`HOST/REPOSITORY:TAG`."""
    digest: Digest
    """Of the manifest or index that the tag names."""
    blobs: Mapping[Digest, How]
    """What had to be done for each."""
    sent: int
    """Bytes of the blobs that were sent."""

    @property
    def reference(self) -> str:
        """`HOST/REPOSITORY@sha256:…`."""
        return f"{self.name.rpartition(':')[0]}@{self.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pusher:
    """An image on its way to a registry, layer by layer."""

    place: Destination
    store: Store
    source: Registry | None
    """Where layers are that the store lacks."""
    delivery: Delivery
    anew: set[Digest] = field(default_factory=set)
    """Blobs that are sent though the registry has them: it is known to serve something else."""

    def ask(self) -> None:
        """PushError unless the registry lets us send, and the source lets us read: before anything is made for it."""
        permitted(self.delivery.registry)
        if self.source:
            self.source.admitted()

    def offer(self, layer: Layer) -> None:
        """Begin to send a layer that is in the store, or else in the source; returns at once.

        Raises what went wrong with another one, for nothing of the image will be named then.
        """
        blob = layer.descriptor
        self.delivery.submit(blob, self._read(blob), anew=blob.digest in self.anew)

    def finish(self, image: Image) -> Pushed:
        """Send what was not offered yet, wait for all, then name the image, by digest and last by its tag.

        StoreError before anything more is sent if a layer is nowhere.
        """
        pushed = self.send(image)
        self.tag(manifest_bytes(image), MANIFEST_TYPE)
        return pushed

    def send(self, image: Image) -> Pushed:
        """As `finish`, but for the tag: it can be looked at by its digest before anybody is led to it."""
        self.store.put(config_bytes(image), CONFIG_TYPE)
        return self.put(manifest_bytes(image), MANIFEST_TYPE)

    def put(self, manifest: bytes, media_type: str) -> Pushed:
        """As `send`, for an image that is known by its manifest: that is put there byte for byte."""
        listed = documents.manifest(manifest)
        blobs = sorted((*listed.layers, listed.config), key=lambda blob: -blob.size)
        self._complete(blobs)
        for blob in blobs:
            self.delivery.submit(blob, self._read(blob), anew=blob.digest in self.anew)
        done, digest = self.delivery.wait(), digests.of_bytes(manifest)
        name(self.delivery.registry, digest, manifest, media_type)
        return pushed(self.place, digest, done)

    def tag(self, manifest: bytes, media_type: str) -> None:
        """Let the tag name what was sent."""
        name(self.delivery.registry, self.place.tag, manifest, media_type)

    def _complete(self, blobs: Sequence[Descriptor]) -> None:
        missing = [blob.digest for blob in blobs if not self.source and not self.store.has(blob)]
        if missing:
            what = f"{len(missing)} layers are missing: {', '.join(missing[:3])}"
            raise StoreError(
                what,
                where=str(self.store.root),
                remedy=f"./inv build {ROW} makes what is missing, or brings it with --from HOST/REPOSITORY",
            )

    def _read(self, blob: Descriptor) -> Read:
        if self.source and not self.store.has(blob):
            return Passing(source=self.source, blob=blob)
        return partial(_stored, self.store, blob.digest)


@contextmanager
def pushing(
    to: str,
    store: Store,
    *,
    environment: Mapping[str, str],
    siblings: Sequence[str] = (),
    plain: Collection[str] = (),
    source: str = "",
    sleep: Sleep | None = None,
    chunk: int = CHUNK,
) -> Iterator[Pusher]:
    """What sends an image to `HOST/REPOSITORY[:TAG]` as it is made; nothing is named unless it is finished.

    `siblings` are repositories of that registry which may have blobs to mount; `plain` are hosts that may speak plain
    HTTP; `source`, `HOST/REPOSITORY`, has the layers that are not in the store: they are mounted from there if it is
    in that registry, else streamed. PushError if the registry can't be had or refuses, HashMismatchError if it has
    other bytes: no tag is set then, and another push goes on with what has arrived.
    """
    place = at(to, plain)
    origin = at(source, plain) if source else None
    if origin and origin.host == place.host and origin.repository != place.repository:
        siblings = (origin.repository, *siblings)
    with (
        connected(origin, environment, failure=PushError) if origin else nullcontext() as old,
        delivering(
            place,
            environment,
            failure=PushError,
            siblings=siblings,
            sleep=sleep,
            chunk=chunk,
            notes=store.uploads,
            source=old,
        ) as delivery,
    ):
        yield Pusher(place=place, store=store, source=old, delivery=delivery)


def push(
    image: Image,
    store: Store,
    to: str,
    *,
    environment: Mapping[str, str],
    siblings: Sequence[str] = (),
    plain: Collection[str] = (),
    sleep: Sleep | None = None,
    chunk: int = CHUNK,
) -> Pushed:
    """Put an image whose layers are in the store at `HOST/REPOSITORY[:TAG]`, as `pushing` does.

    StoreError before anything is sent if a layer is missing.
    """
    options = {"environment": environment, "siblings": siblings, "plain": plain, "sleep": sleep, "chunk": chunk}
    with pushing(to, store, **options) as pusher, console.step(f"push {to}"):  # type: ignore[arg-type]
        return pusher.finish(image)


def pushed(place: Destination, digest: Digest, done: Sequence[tuple[Descriptor, How]]) -> Pushed:
    """What was done, summed up."""
    how = {blob.digest: how for blob, how in reversed(done)}  # an index may list one twice: the first time counts
    sent = {blob.digest: blob.size for blob, _ in done if how[blob.digest] == "sent"}
    return Pushed(
        name=f"{place.host}/{place.repository}:{place.tag}", digest=digest, blobs=how, sent=sum(sent.values())
    )


def _stored(store: Store, digest: Digest, start: int, stop: int) -> Iterator[bytes]:
    with store.open(digest) as file:
        file.seek(start)
        while start < stop and (piece := file.read(min(PIECE, stop - start))):
            yield piece
            start += len(piece)
