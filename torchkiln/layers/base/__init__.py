"""Base layers: one module per kind of base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchkiln.lock.baselock import BaseLock
    from torchkiln.oci.image import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseResult:
    """The layers of a base, lowest first, and what they hold."""

    layers: tuple[Layer, ...]
    packages: BaseLock
    difference: tuple[str, ...] = ()
    """From the lock, one line a package or layer; empty if there is none."""
