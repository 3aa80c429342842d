"""Images that others made: an OCI image layout on disk, or what `docker save` writes."""

from __future__ import annotations

import io
import json
import os
import platform
import posixpath
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchkiln.errors import ImageError, VerifyError
from torchkiln.oci import content
from torchkiln.oci import digest as digests
from torchkiln.oci import document as documents
from torchkiln.oci.image import (
    ARCHITECTURES,
    HISTORY,
    INDEX_TYPE,
    REF_NAME,
    Descriptor,
    Image,
    Layer,
)
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from io import BufferedReader
    from typing import BinaryIO

    from torchkiln.oci.digest import Digest
    from torchkiln.oci.tar import Content

INDEX_TYPES = (INDEX_TYPE, "application/vnd.docker.distribution.manifest.list.v2+json")
LARGEST_DOCUMENT = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """An image as we see it, and the digest that its makers know it by."""

    name: str
    image: Image
    """Its config holds what engines need; written out again it would have another digest."""
    store: Store
    """Where its layers lie."""
    digest: Digest
    """Of the manifest; of the config where the engine keeps no manifest."""
    loaded: str = ""
    """Its id in the Docker engine that it was read from; empty if it came from elsewhere."""


def layout(reference: str) -> Foreign:
    """`DIR[:REF]`, with `oci:` in front or not; ImageError if that names no image, VerifyError if layers lie."""
    store, chosen = manifest_of(reference)
    manifest = documents.manifest(store.read(chosen.digest))
    return Foreign(
        name=reference,
        image=replace(
            _image(store, store.read(manifest.config.digest), manifest.layers, reference), name=manifest.name
        ),
        store=store,
        digest=chosen.digest,
    )


def manifest_of(reference: str) -> tuple[Store, Descriptor]:
    """Where the image of `layout` lies and how it calls its manifest, nothing else read; ImageError as there."""
    folder, ref = _split(reference.removeprefix("oci:"))
    store = Store(folder)
    try:
        with (folder / "index.json").open("rb") as file:
            index = file.read(LARGEST_DOCUMENT)
    except OSError as error:
        raise ImageError(f"no OCI image layout: {error.strerror}", where=str(folder), remedy="oci:DIR[:REF]") from error
    return store, _chosen(store, index, ref, reference)


def archive(pieces: Iterable[bytes], store: Store, name: str) -> Foreign:
    """What `docker save` writes, poured into a store of its own while it is read."""
    files = _poured(pieces, store)
    try:
        (listed,) = json.loads(store.read(files["manifest.json"].digest))
        config = store.read(files[listed["Config"]].digest)
        layers = tuple(_typed(store, files[path]) for path in listed["Layers"])
    except (*documents.MALFORMED, OSError) as error:
        raise ImageError(f"the engine sent no image archive: {error!r}", where=name) from error
    known = _known(store, files) or files[listed["Config"]].digest
    return Foreign(name=name, image=_image(store, config, layers, name), store=store, digest=known)


def _split(text: str) -> tuple[Path, str]:
    """A folder that exists as written wins; else the last colon begins the name."""
    if Path(text).is_dir():
        return Path(text).absolute(), ""
    folder, _, ref = text.rpartition(":")
    return Path(folder or text).absolute(), ref


def _chosen(store: Store, index: bytes, ref: str, where: str) -> Descriptor:
    """The entry with that name, or the only one; of an index inside, the one for this machine."""
    try:
        entries = [
            (Descriptor.from_json(entry), entry.get("platform") or {}) for entry in json.loads(index)["manifests"]
        ]
    except documents.MALFORMED as error:
        raise ImageError(f"not an OCI image index: {error!r}", where=where) from error
    names = sorted(entry.annotations[REF_NAME] for entry, _ in entries if REF_NAME in entry.annotations)
    wanted = [entry for entry in entries if not ref or entry[0].annotations.get(REF_NAME) == ref]
    here = ARCHITECTURES.get(platform.machine(), platform.machine())
    if len(wanted) > 1:
        wanted = [entry for entry in wanted if entry[1].get("architecture") == here and entry[1].get("os") == "linux"]
    if len(wanted) != 1:
        remedy = f"name one of {', '.join(names)}" if names else f"it must hold one image for linux/{here}"
        raise ImageError(f"{len(wanted)} images fit {ref or 'without a name'}", where=where, remedy=remedy)
    found = wanted[0][0]
    if found.media_type in INDEX_TYPES:
        return _chosen(store, store.read(found.digest), "", where)
    return found


def _image(store: Store, config: bytes, layers: tuple[Descriptor, ...], name: str) -> Image:
    """Every layer is read once, to learn its size and to hold it against the config."""
    document = documents.document(config)
    if len(layers) != len(document.diff_ids):
        raise ImageError(f"{len(layers)} layers and {len(document.diff_ids)} diff_ids", where=name)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        measured = list(pool.map(lambda layer: content.measure(store, layer.digest), layers))
    wrong = [
        f"layer {descriptor.digest} holds {found}, not {stated}"
        for descriptor, (found, _), stated in zip(layers, measured, document.diff_ids, strict=True)
        if found != stated
    ]
    if wrong:
        raise VerifyError("\n".join(wrong), where=name)
    ours = tuple(step.removeprefix(HISTORY) for step in document.history)  # our own images come back as equal values
    titles = ours if len(ours) == len(layers) else ("",) * len(layers)
    return Image(
        config=document.config,
        layers=tuple(
            Layer(descriptor=descriptor, diff_id=diff_id, unpacked_size=size, title=title)
            for descriptor, (diff_id, size), title in zip(layers, measured, titles, strict=True)
        ),
    )


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  any writable buffer
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def _poured(pieces: Iterable[bytes], store: Store) -> dict[str, Descriptor]:
    """Every file of the archive as a blob, by its path; links stand for what they point at."""
    files: dict[str, Descriptor] = {}
    links: dict[str, str] = {}
    tar = content.TarStream(cast("BinaryIO", io.BufferedReader(_Pieces(pieces), digests.CHUNK)))
    for member, data in tar.members():
        path = "/".join(content.parts(member.name))
        if data is not None:
            files[path] = _copied(data, store)
        elif member.kind == "symlink":  # older engines link a layer that two images share
            links[path] = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.target))
    tar.finish()
    return files | {path: files[target] for path, target in links.items() if target in files}


def _copied(data: Content, store: Store) -> Descriptor:
    with store.writer() as writer:
        while piece := data.read(digests.CHUNK):
            writer.write(piece)
        return writer.commit("")


def _typed(store: Store, blob: Descriptor) -> Descriptor:
    with store.open(blob.digest) as file:
        media_type = content.form(cast("BufferedReader", file))
    return Descriptor(media_type=media_type, digest=blob.digest, size=blob.size)


def _known(store: Store, files: Mapping[str, Descriptor]) -> Digest | None:
    """The manifest's digest, from engines (25.0 and newer) that write an index, too."""
    if "index.json" not in files:
        return None
    entries = json.loads(store.read(files["index.json"].digest)).get("manifests") or []
    return digests.parse(str(entries[0]["digest"])) if len(entries) == 1 else None
