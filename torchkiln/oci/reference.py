"""What names an image: host, repository and digest or tag, and the address that they lead to."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

from torchkiln.errors import ImageError
from torchkiln.oci import digest as digests

if TYPE_CHECKING:
    from collections.abc import Collection

    from torchkiln.oci.digest import Digest

HUB = {"docker.io": "registry-1.docker.io"}
"""Names of images, where they are served by another host."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
"""Where a registry may speak plain HTTP."""
LONGEST_NAME = 255
LATEST = "latest"
"""The tag of who names none, as engines have it."""
LAYER = "layer-"
"""What tags begin with that are entries of a layer index (`layerindex`), which are no images."""
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = rf"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{{1,5}})?)/(?P<name>{_PART}(?:/{_PART})*)"
"""That of distribution-spec, "Pulling manifests"; so it has no `..` and no empty part."""
_FORM = re.compile(rf"{_NAME}@(?P<digest>sha256:[0-9a-f]{{64}})")
_TAGGED = re.compile(rf"{_NAME}(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?")

_DIGEST, _TAG = re.compile(r"@sha\d+:.*$"), re.compile(r":[^:/]*$")
"""How a name may end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A place for images in a registry."""

    host: str
    """With its port, if it has one."""
    repository: str
    plain: bool = False
    """Told to speak plain HTTP, which this machine's registries do anyway."""

    @property
    def local(self) -> bool:
        """Whether its registry is on this machine."""
        return self.machine in LOOPBACK

    @property
    def machine(self) -> str:
        """The host without its port, in small letters, as addresses have it."""
        return self.host.partition(":")[0].lower()

    @property
    def address(self) -> str:
        """Where it is served; by HTTPS, but on this machine or when told."""
        scheme = "http" if self.local or self.plain else "https"
        return f"{scheme}://{HUB.get(self.host, self.host)}/v2/{self.repository}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference(Repository):
    """An image by digest."""

    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination(Repository):
    """Where an image shall be, under a name that may move."""

    tag: str


def parse(text: str, *, plain: bool = False) -> Reference:
    """`HOST/REPOSITORY@sha256:…`; ImageError for anything else, tags among it."""
    found = _FORM.fullmatch(text)
    if not _fits(found):
        raise _refused(text, "HOST/REPOSITORY@sha256:…", "a tag may move, a digest does not")
    digest = digests.parse(found["digest"])
    return Reference(host=found["host"], repository=_full(found), plain=plain, digest=digest)


def destination(text: str, *, plain: bool = False) -> Destination:
    """`HOST/REPOSITORY[:TAG]` of an image; ImageError for anything else, digests and the index of layers among it."""
    found = _TAGGED.fullmatch(text)
    if not _fits(found):
        remedy = "a tag or none, but no digest, " if _DIGEST.search(text) else ""
        raise _refused(text, "HOST/REPOSITORY[:TAG]", f"{remedy}such as docker.io/USER/NAME:TAG")
    tag = found["tag"] or LATEST
    if tag.startswith(LAYER):
        what = f"tags that begin with {LAYER} are for Torchkiln's index of layers, and name no image"
        raise ImageError(what, where=text, remedy=f"{found['host']}/{found['name']} with another tag")
    return Destination(host=found["host"], repository=_full(found), plain=plain, tag=tag)


def repository(text: str) -> Destination:
    """`HOST/REPOSITORY`, where layers are; ImageError for anything else, tags among it."""
    place = destination(text)
    if ":" in text.rpartition("/")[2]:
        what = "layers have no tag, they are found by what they are made from"
        raise ImageError(what, where=text, remedy="--from HOST/REPOSITORY")
    return place


def at(text: str, plain: Collection[str]) -> Destination:
    """The place of `destination`, on plain HTTP if its host is among those that are told to speak it."""
    place = destination(text)
    return replace(place, plain=place.host in plain)


def whole(name: str) -> str:
    """What engines take a short name for: the hub's, and there of its own images where no user is named."""
    first, slash, rest = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    if first == "docker.io" and "/" not in rest:
        return f"docker.io/library/{rest}"
    return name if _is_host(first) else f"docker.io/{name}"


def masked(text: str) -> str:
    """A name as it may be shown: without what stands before the host, which may be a password."""
    return re.sub(r"^.*@(?!sha\d+:)", "***@", text, flags=re.DOTALL)[:200]


def _fits(found: re.Match[str] | None) -> TypeGuard[re.Match[str]]:
    """Whether it names a registry: a first part without dot or port is a user of the hub, to engines (`whole`)."""
    return found is not None and len(found["name"]) <= LONGEST_NAME and _is_host(found["host"])


def _is_host(first: str) -> bool:
    return first == "localhost" or bool(set(".:") & set(first))


def _refused(text: str, form: str, otherwise: str) -> ImageError:
    """What is wrong with a name, as far as that can be said, and nothing that may be a password."""
    return ImageError(f"not {form}", where=repr(masked(text)), remedy=_remedy(text) or otherwise)


def _remedy(text: str) -> str:
    """Empty where nothing better is known than the form."""
    first, slash, rest = text.partition("/")
    name = _TAG.sub("", _DIGEST.sub("", rest))
    if re.search(r"@(?!sha\d+:).*/", text, re.DOTALL):
        return "credentials belong to docker login or netrc, not into a name"
    if "://" in text:
        return f"a name, not an address: {masked(text.partition('://')[2])}"
    if not (slash and _is_host(first)):
        return f"name the registry too, as in docker.io/{masked(text)}"
    if name != name.lower():
        return f"repositories are written in small letters: {masked(f'{first}/{name.lower()}')}"
    return f"a repository has at most {LONGEST_NAME} letters" if len(name) > LONGEST_NAME else ""


def _full(found: re.Match[str]) -> str:
    """The hub's own images are in a folder that their names leave out."""
    bare = found["host"] in HUB and "/" not in found["name"]
    return f"library/{found['name']}" if bare else found["name"]
