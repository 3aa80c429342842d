"""Layers that a registry's index claims and no lock knows: used like any other here, and never taken for made here.

So is what they turn into: bytecode that a claimed base's Python compiled, a claimed layer in another compression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torchkiln.home import Home
    from torchkiln.oci.image import Layer

_MARK = "claimed"


def record(home: Home, key: str, layer: Layer, *, claimed: bool) -> None:
    """Remember what a layer key became, and whether that is somebody's word."""
    home.record(key, {**layer.to_json(), **({_MARK: True} if claimed else {})})


def among(home: Home, keys: Iterable[str]) -> list[str]:
    """Those of these keys whose layers are claims, or were made of some."""
    return [key for key in keys if (home.lookup(key) or {}).get(_MARK)]


def forget(home: Home, keys: Iterable[str], locked: Collection[str]) -> list[str]:
    """Forget the claims among these keys that no lock knows, so that they are made here; gives them."""
    found = among(home, (key for key in keys if key not in locked))
    for key in found:
        home.forget(key)
    return found
