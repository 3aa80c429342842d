"""Which layers need not be made, and what every layer is held against: the index of the cache, and layers.lock."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from torchkiln.assembly import claims
from torchkiln.lock import layerlock
from torchkiln.oci import zstd
from torchkiln.oci.compression import GZIP
from torchkiln.oci.image import recorded
from torchkiln.specs import AdoptionSpec, BaseSpec, BytecodeSpec, ForeignSpec, key_in_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchkiln.layers.inflate import Boundary
    from torchkiln.oci.compression import Compression
    from torchkiln.oci.image import Layer
    from torchkiln.project import Project
    from torchkiln.specs import LayerSpec

TOOLS = ("isal", "zlib-ng", "deflate")
"""Packages whose versions could play a part in a layer's bytes, though none should. That of libzstd does, in zstd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Layers by their keys: at hand, elsewhere, and as they are locked."""

    project: Project
    locked: Mapping[str, Layer]
    remote: Mapping[str, Layer]
    verify: bool
    """Whether everything is made anew, in the slow way that checks all of it."""
    compression: Compression = GZIP
    """Of the image's layers, which are made as gzip first."""
    boundaries: Mapping[str, Mapping[int, Boundary]] = field(default_factory=dict)
    """Of large deflate streams, by the sha256 of their wheels."""

    def key(self, spec: LayerSpec) -> str:
        """Of a layer as the image has it."""
        return key_in_image(spec, self.compression)

    def find(self, spec: LayerSpec) -> Layer | None:
        """A layer as the image has it, that was made before and is still in the store, or lies elsewhere.

        One that the lock knows otherwise is none: it is made again, and then judged. The base keeps its own account.
        """
        return self._found(spec, self.key(spec))

    def find_gzip(self, spec: LayerSpec) -> Layer | None:
        """The same of a layer as it is made."""
        return self._found(spec, spec.key)

    def spares(self, spec: LayerSpec) -> bool:
        """Whether nobody needs what a layer is made from."""
        return self.find(spec) is not None or self.find_gzip(spec) is not None

    def _found(self, spec: LayerSpec, key: str) -> Layer | None:
        if self.verify:
            return None
        locked = self.locked.get(key) or self.locked.get(spec.key)
        if locked and locked.empty:
            return locked  # no image will hold it, so nobody needs its bytes
        own = key == spec.key and isinstance(spec, BaseSpec | ForeignSpec | AdoptionSpec)
        layer = None if own else recorded(self.project.home.lookup(key))
        if layer is None or not self.project.store.has(layer.descriptor):
            return self.remote.get(key)
        return layer if self._agrees(spec, key, layer) else None

    def _agrees(self, spec: LayerSpec, key: str, layer: Layer) -> bool:
        """Whether it is the locked layer, or, where that is locked as gzip alone, holds the same tar."""
        own, gzip = self.locked.get(key), self.locked.get(spec.key)
        if own is not None or gzip is None:
            return own is None or layerlock.same(own, layer)
        return (layer.diff_id, layer.unpacked_size) == (gzip.diff_id, gzip.unpacked_size)

    def expected(self, spec: LayerSpec) -> Layer | None:
        """The layer as it is locked, which spares its maker to check what it is made from."""
        return None if self.verify else self.locked.get(spec.key)

    def hold(self, spec: LayerSpec, layer: Layer, key: str = "") -> None:
        """LayerMismatchError for a layer that is not the one that is locked, by its spec's key or another one."""
        layerlock.hold(self.locked, key or spec.key, layer, versions=partial(versions, spec))

    def record(self, spec: LayerSpec, layer: Layer, key: str = "", *, made_of: Iterable[str] = ()) -> None:
        """Remember a layer that was made, by its spec's key or another one; `made_of` are keys of other layers."""
        home, key = self.project.home, key or spec.key
        claims.record(home, key, layer, claimed=key not in self.locked and bool(claims.among(home, made_of)))


def versions(spec: LayerSpec) -> str:
    """What made a layer: the layer format and the tools, for who has to find out why its bytes differ."""
    tools = [*(f"{name} {version(name)}" for name in TOOLS), f"libzstd {zstd.VERSION}"]
    compiler = [f"bytecode by Python {spec.python}"] if isinstance(spec, BytecodeSpec) else []
    return ", ".join([f"layer format {spec.FORMAT}", *compiler, *tools, f"Python {platform.python_version()}"])
