"""Let a tag or digest of a repository name a manifest, and see that it does; find out what a tag names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.errors import HashMismatchError
from torchkiln.oci import digest as digests
from torchkiln.oci.reference import at, parse
from torchkiln.oci.registry import connected
from torchkiln.oci.upload import COMMIT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchkiln.oci.registry import Registry


def name(registry: Registry, name: str, data: bytes, media_type: str) -> None:
    """Put a manifest there; HashMismatchError if the registry then has another one by that name."""
    address = f"{registry.reference.address}/manifests/{name}"

    def put() -> None:
        headers = {"Content-Type": media_type}
        with registry.ask("PUT", address, headers, content=data, good={200, 201, 202}, timeout=COMMIT):
            pass

    registry.persist(f"manifest {name}", put)
    found, digest = registry.resolve(name), digests.of_bytes(data)
    if found != digest:
        remedy = "push again, unless somebody else pushes there; then find out who"
        raise HashMismatchError(
            f"the registry has {found} as {name}, not {digest}", where=registry.where, remedy=remedy
        )


def pinned(text: str, *, environment: Mapping[str, str], plain: Collection[str] = ()) -> str:
    """`HOST/REPOSITORY@sha256:…` of `HOST/REPOSITORY[:TAG]`, as it is now; what has a digest stays as it is.

    ImageError for what is no reference, FetchError if the registry can't be asked.
    """
    if "@" in text:
        parse(text)
        return text
    place = at(text, plain)
    with connected(place, environment) as registry:
        return f"{text.removesuffix(f':{place.tag}')}@{digests.parse(registry.resolve(place.tag))}"
