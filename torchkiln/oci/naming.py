"""Let a tag or digest of a repository name a manifest, and see that it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.errors import HashMismatchError
from torchkiln.oci import digest as digests
from torchkiln.oci.registry import INDEX_TYPES, MANIFEST_TYPES
from torchkiln.oci.session import LARGEST_MANIFEST, bounded
from torchkiln.oci.upload import COMMIT

if TYPE_CHECKING:
    from torchkiln.oci.registry import Registry


def name(registry: Registry, name: str, data: bytes, media_type: str) -> None:
    """Put a manifest there; HashMismatchError if the registry then has another one by that name."""
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
