"""What a registry takes, and a row as it is made for one; pure."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from torchkiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.oci.compression import Compression

LAYER_LIMIT = 120
"""Docker's layer store stops at 125 layers, registries and other engines at 127 or 128; a derived image needs a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTarget:
    """What an image may be made of, so that a registry and those who pull from it take it."""

    id: str = ""
    """For example `ecr`; empty for what fits most."""
    compression: Compression | None = None
    """None: the row's own."""
    max_layer_bytes: int | None = None
    """Of a blob."""
    max_layers: int = LAYER_LIMIT


ANY = PublishTarget()
"""Where nothing else is said."""


def find(declared: Mapping[str, PublishTarget], name: str) -> PublishTarget:
    """The publish target of that name; UsageError names the nearest."""
    if not name:
        return ANY
    if name not in declared:
        near = get_close_matches(name, declared, n=1, cutoff=0.4) or declared
        raise UsageError(
            f"no publish target is called {name}",
            where="matrix.yaml: publish_targets",
            remedy=" or ".join(f"--for {one}" for one in near) or "declare it there",
        )
    return declared[name]
