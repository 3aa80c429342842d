"""Put an image into a registry, from the store or from another registry: blobs, then the manifest, then the tag.

A tag never names something incomplete: it is set when the registry has all of the image and says so.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from torchkiln import console
from torchkiln.errors import HashMismatchError, ImageError, PushError, StoreError
from torchkiln.oci import digest as digests
from torchkiln.oci import document as documents
from torchkiln.oci.image import CONFIG_TYPE, MANIFEST_TYPE, Descriptor, config_bytes, manifest_bytes
from torchkiln.oci.pull import LARGEST_LAYER
from torchkiln.oci.reference import destination, parse
from torchkiln.oci.registry import CONNECTIONS, INDEX_TYPES, MANIFEST_TYPES, connected
from torchkiln.oci.session import LARGEST_MANIFEST, bounded
from torchkiln.oci.upload import CHUNK, COMMIT, send

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from torchkiln.oci.digest import Digest
    from torchkiln.oci.document import Manifest
    from torchkiln.oci.image import Image
    from torchkiln.oci.reference import Destination
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.store import Store
    from torchkiln.oci.upload import How, Read

    Sleep = Callable[[float], None]
    Part = tuple[Descriptor, Read]

PIECE = 1 << 20
"""Bytes that are in memory at a time, for each connection."""
TOLD = 256 << 20
"""Bytes of a blob after which its progress is told again."""


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


class _HaltedError(Exception):
    """Another blob has failed."""


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
    """Put an image whose layers are in the store at `HOST/REPOSITORY[:TAG]`.

    `siblings` are repositories of that registry which may have blobs to mount; `plain` are hosts that may speak plain
    HTTP. StoreError before anything is sent if a layer is missing; PushError if the registry can't be had or refuses,
    HashMismatchError if it has other bytes: no tag is set then, and another push goes on with what has arrived.
    """
    place = _place(to, plain)
    config, data = config_bytes(image), manifest_bytes(image)
    layers = [layer.descriptor for layer in image.layers]
    missing = [blob.digest for blob in layers if not store.has(blob)]
    if missing:
        what = f"{len(missing)} layers are missing: {', '.join(missing[:3])}"
        raise StoreError(what, where=str(store.root), remedy="build the target again")
    about = Descriptor(media_type=CONFIG_TYPE, digest=digests.of_bytes(config), size=len(config))
    parts: list[Part] = [(blob, partial(_stored, store, blob.digest)) for blob in layers]
    parts.append((about, lambda start, stop: iter((config[start:stop],))))
    with _connected(place, environment, siblings, sleep) as (registry, halt), console.step(f"push {to}"):
        done = _deliver(registry, parts, siblings, halt, chunk)
        digest = digests.of_bytes(data)
        for name in (digest, place.tag):
            _name(registry, name, data, MANIFEST_TYPE)
    return _pushed(place, digest, done)


def copy(
    source: str,
    to: str,
    *,
    environment: Mapping[str, str],
    siblings: Sequence[str] = (),
    plain: Collection[str] = (),
    sleep: Sleep | None = None,
    chunk: int = CHUNK,
) -> Pushed:
    """Put the image or index at `HOST/REPOSITORY@sha256:…` at `HOST/REPOSITORY[:TAG]`, byte for byte.

    Blobs are streamed; within one registry they are mounted if it allows that. Otherwise as `push`.
    """
    origin, place = parse(source), _place(to, plain)
    origin = replace(origin, plain=origin.host in plain)
    if origin.host == place.host and origin.repository != place.repository:
        siblings = (origin.repository, *siblings)
    done: list[tuple[Descriptor, How]] = []
    with (
        connected(origin, environment, failure=PushError) as old,
        _connected(place, environment, siblings, sleep) as (new, halt),
        console.step(f"copy {source} to {to}"),
    ):
        if sleep:
            old.sleep = sleep
        data, media_type = old.manifest(origin.digest)
        for child, child_type in (*_children(old, data, media_type), (data, media_type)):
            if child_type in MANIFEST_TYPES:
                manifest = documents.manifest(child)
                _sized(old, manifest)
                wanted = [(blob, partial(old.pieces, blob)) for blob in (*manifest.layers, manifest.config)]
                done += _deliver(new, wanted, siblings, halt, chunk)
            _name(new, digests.of_bytes(child), child, child_type)
        _name(new, place.tag, data, media_type)
    return _pushed(place, origin.digest, done)


def _sized(registry: Registry, manifest: Manifest) -> None:
    """ImageError for sizes that no blob has, before any is asked for."""
    wrong = [blob.digest for blob in (*manifest.layers, manifest.config) if not 0 <= blob.size <= LARGEST_LAYER]
    if wrong:
        raise ImageError(f"no blob has the size stated for {wrong[0]}", where=registry.where)


def _place(to: str, plain: Collection[str]) -> Destination:
    place = destination(to)
    return replace(place, plain=place.host in plain)


def _pushed(place: Destination, digest: Digest, done: Sequence[tuple[Descriptor, How]]) -> Pushed:
    how = {blob.digest: how for blob, how in reversed(done)}  # an index may list one twice: the first time counts
    sent = {blob.digest: blob.size for blob, _ in done if how[blob.digest] == "sent"}
    name = f"{place.host}/{place.repository}:{place.tag}"
    return Pushed(name=name, digest=digest, blobs=how, sent=sum(sent.values()))


@contextmanager
def _connected(
    place: Destination, environment: Mapping[str, str], siblings: Sequence[str], sleep: Sleep | None
) -> Iterator[tuple[Registry, threading.Event]]:
    """A client that may push, and what makes its threads give up; waiting ends with that too."""
    halt = threading.Event()
    scopes = (f"repository:{place.repository}:pull,push", *(f"repository:{name}:pull" for name in siblings))

    def rest(seconds: float) -> None:
        halt.wait(seconds)

    with connected(place, environment, sleep or rest, scopes=scopes, failure=PushError) as registry:
        yield registry, halt


def _stored(store: Store, digest: Digest, start: int, stop: int) -> Iterator[bytes]:
    with store.open(digest) as file:
        file.seek(start)
        while start < stop and (piece := file.read(min(PIECE, stop - start))):
            yield piece
            start += len(piece)


def _deliver(
    registry: Registry, parts: Sequence[Part], siblings: Sequence[str], halt: threading.Event, chunk: int
) -> list[tuple[Descriptor, How]]:
    """Send each blob once, the largest first; the first failure ends all."""
    largest = sorted({part[0].digest: part for part in parts}.values(), key=lambda part: -part[0].size)
    done = []
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        futures = {
            pool.submit(
                send,
                registry,
                blob,
                partial(_until, halt, read),
                siblings=siblings,
                chunk=chunk,
                arrived=partial(_arrived, blob, []),
            ): blob
            for blob, read in largest
        }
        try:
            for future in as_completed(futures):
                blob, how = futures[future], future.result()
                done.append((blob, how))
                console.note(f"{how}: {blob.digest[:19]}, {blob.size / 1e6:.1f} MB ({len(done)} of {len(futures)})")
        except BaseException:
            halt.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done


def _until(halt: threading.Event, read: Read, start: int, stop: int) -> Iterator[bytes]:
    for piece in read(start, stop):
        if halt.is_set():
            raise _HaltedError
        yield piece


def _arrived(blob: Descriptor, told: list[int], offset: int) -> None:
    """Say how far a blob is, from time to time."""
    if offset - max(told, default=0) >= TOLD:
        told.append(offset)
        console.note(f"{blob.digest[:19]}: {offset / 1e6:.0f} of {blob.size / 1e6:.0f} MB")


def _children(registry: Registry, data: bytes, media_type: str) -> list[tuple[bytes, str]]:
    """The manifests of an index, none of a manifest; ImageError for anything else."""
    if media_type in MANIFEST_TYPES:
        return []
    if media_type not in INDEX_TYPES:
        raise ImageError(f"a manifest of type {media_type or 'unknown'}", where=registry.where)
    try:
        entries = [Descriptor.from_json(entry) for entry in json.loads(data)["manifests"]]
    except documents.MALFORMED as error:
        raise ImageError(f"not an image index: {error!r}", where=registry.where) from error
    found = [registry.manifest(entry.digest) for entry in entries]
    odd = sorted({kind for _, kind in found if kind not in MANIFEST_TYPES})
    if odd:
        raise ImageError(f"the index lists {', '.join(odd)}", where=registry.where, remedy="copy the images in it")
    return found


def _name(registry: Registry, name: str, data: bytes, media_type: str) -> None:
    """Let a tag or digest name a manifest; HashMismatchError if the registry then has another one there."""
    address = f"{registry.reference.address}/manifests/{name}"

    def put() -> None:
        headers = {"Content-Type": media_type}
        with registry.ask("PUT", address, headers, content=data, good={200, 201, 202}, timeout=COMMIT):
            pass

    registry.persist(f"manifest {name}", put)
    found, digest = registry.persist(f"manifest {name}", lambda: _named(registry, address)), digests.of_bytes(data)
    if found != digest:
        remedy = "push again, unless somebody else pushes there; then find out who"
        raise HashMismatchError(
            f"the registry has {found} as {name}, not {digest}", where=registry.where, remedy=remedy
        )


def _named(registry: Registry, address: str) -> str:
    """The digest of what a name stands for: as stated, else reckoned."""
    accepted = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
    with registry.ask("HEAD", address, accepted) as response:
        stated = str(response.headers.get("Docker-Content-Digest", ""))
    if stated:
        return stated[:100]
    with registry.ask("GET", address, accepted) as response:
        return digests.of_bytes(bounded(response, LARGEST_MANIFEST))
