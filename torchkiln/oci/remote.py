"""Layers that lie in a repository and need not be made: found by key, and brought into the store where they are needed.

Nothing is believed. A layer that a lock knows is taken by its digest, which says what it holds, whoever serves it. Any
other is somebody's claim: it is fetched and read to its end, and used only if it holds what its entry states. That
makes it whole, and honest too if a lock knows the diff_id, as that of another compression. Else it is as good as those
who may write to the repository.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

from torchkiln import console
from torchkiln.errors import ROW, HashMismatchError, ImageError
from torchkiln.oci import content, layerindex
from torchkiln.oci.pull import measured
from torchkiln.oci.reference import repository
from torchkiln.oci.registry import connected

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from io import BufferedReader

    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Layer
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.store import Store


TOLD = 5
"""Titles of layers that are told, of many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A repository's layers, and the store that they are brought into."""

    registry: Registry
    store: Store
    row: str = ROW
    """How a command names what the layers are for."""
    damaged: set[Digest] = field(default_factory=set)
    """Blobs that the registry is known to serve as something else."""

    def find(
        self,
        wanted: Mapping[str, str],
        locked: Mapping[str, Layer],
        *,
        tars: Mapping[str, Digest] = MappingProxyType({}),
        strict: bool = False,
    ) -> dict[str, Layer]:
        """Those layers of `wanted`, titles by key, that the repository has and that may be used.

        What `locked` knows stays where it is; all else is in the store after. Of what `tars` has by key at least the
        diff_id is known; with `strict` nothing else is asked for. FetchError if the registry can't be had.
        """
        known = {key: locked[key] for key in wanted if key in locked}
        asked = wanted.keys() - known.keys()
        claimed = self._plausible(layerindex.lookup(self.registry, asked & tars.keys() if strict else asked), tars)
        self._tell(wanted[key] for key, layer in claimed.items() if not self.store.has(layer.descriptor))
        with self.registry.threads() as pool:
            # one that holds nothing gets into no image, and so nobody has pushed it
            there = pool.map(lambda key: known[key].empty or self._there(replace(known[key], title=wanted[key])), known)
            whole = pool.map(self._whole, claimed.values())
            found = dict(zip((*known, *claimed), (*there, *whole), strict=True))
        layers = {**known, **claimed}
        # a title gets into the image's config, and is ours to choose
        return {key: replace(layers[key], title=wanted[key]) for key, usable in found.items() if usable}

    def bring(self, layers: Mapping[str, Layer]) -> set[str]:
        """Put the blobs of layers, by key, into the store, the largest first; the keys of those served as other bytes.

        Those are told. FetchError if the registry can't be had.
        """
        bad = self.registry.blobs([layer.descriptor for layer in layers.values() if not layer.empty], self.store)
        self.damaged.update(bad)
        refused = {key: bad[layer.descriptor.digest] for key, layer in layers.items() if layer.descriptor.digest in bad}
        for key, error in refused.items():
            self._refused(layers[key], error.what)
        return set(refused)

    def _tell(self, titles: Iterable[str]) -> None:
        """Say what moves though it may not be needed here."""
        told = list(titles)
        if told:
            more = f" and {len(told) - TOLD} more" if len(told) > TOLD else ""
            console.note(f"no lock knows {len(told)} layers, fetched to be checked: {', '.join(told[:TOLD])}{more}")

    def _there(self, layer: Layer) -> bool:
        """Whether a locked layer can be had; a copy of another size is told."""
        blob = layer.descriptor
        if self.store.has(blob):
            return True
        size = self.registry.size(blob)
        if size not in {None, blob.size}:
            self.damaged.add(blob.digest)
        return size == blob.size or (size is not None and self._refused(layer, f"it has {size} bytes, not {blob.size}"))

    def _plausible(self, claimed: Mapping[str, Layer], tars: Mapping[str, Digest]) -> dict[str, Layer]:
        """Claims that do not contradict what is known."""
        return {
            key: layer
            for key, layer in claimed.items()
            if tars.get(key, layer.diff_id) == layer.diff_id
            or self._refused(layer, f"its entry states {layer.diff_id}, a lock {tars[key]}")
        }

    def _whole(self, layer: Layer) -> bool:
        """Whether a claim holds; what does not is told, unless its blob was collected meanwhile."""
        size = self.registry.size(layer.descriptor)
        if size != layer.descriptor.size:
            told = f"its blob has {size} bytes, not {layer.descriptor.size}"
            return size is not None and self._refused(layer, told)
        try:
            limit = layer.unpacked_size
            found, size = measured(self.registry, self.store, layer.descriptor, layer.diff_id, limit=limit)
            with self.store.open(layer.descriptor.digest) as blob:
                form = content.form(cast("BufferedReader", blob))
        except (HashMismatchError, ImageError) as error:
            if isinstance(error, HashMismatchError):
                self.damaged.add(layer.descriptor.digest)
            return self._refused(layer, error.what)
        held, stated = (found, size, form), (layer.diff_id, layer.unpacked_size, layer.descriptor.media_type)
        return held == stated or self._refused(layer, f"it holds {held}, not {stated}")

    def _refused(self, layer: Layer, why: str) -> Literal[False]:
        place = self.registry.where
        again = f"./inv push {place}:TAG {self.row} --verify sends it there again"
        console.warn(f"{layer.title}: what {place} has is not used: {why}; it is made here; {again}")
        return False


@contextmanager
def at(
    where: str,
    store: Store,
    *,
    environment: Mapping[str, str],
    plain: Collection[str] = (),
    sleep: Callable[[float], object] | None = None,
    row: str = ROW,
) -> Iterator[Remote]:
    """The layers of `HOST/REPOSITORY`; ImageError for another form. `plain` are hosts that may speak plain HTTP."""
    place = repository(where)
    with connected(replace(place, plain=place.host in plain), environment, sleep) as registry:
        yield Remote(registry=registry, store=store, row=row)
