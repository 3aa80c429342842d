"""What names an image: host, repository and digest, and the address that they lead to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import ImageError
from torchkiln.oci import digest as digests

if TYPE_CHECKING:
    from torchkiln.oci.digest import Digest

HUB = {"docker.io": "registry-1.docker.io"}
"""Names of images, where they are served by another host."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
"""Where a registry may speak plain HTTP."""
LONGEST_NAME = 255
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_FORM = re.compile(
    rf"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{{1,5}})?)/(?P<name>{_PART}(?:/{_PART})*)@(?P<digest>sha256:[0-9a-f]{{64}})"
)
"""The name's form is that of distribution-spec, "Pulling manifests"; so it has no `..` and no empty part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image by digest."""

    host: str
    """With its port, if it has one."""
    repository: str
    digest: Digest

    @property
    def local(self) -> bool:
        """Whether its registry is on this machine."""
        return self.host.partition(":")[0] in LOOPBACK

    @property
    def address(self) -> str:
        """Where its repository is served; plain HTTP on this machine only."""
        return f"{'http' if self.local else 'https'}://{HUB.get(self.host, self.host)}/v2/{self.repository}"


def parse(text: str) -> Reference:
    """`HOST/REPOSITORY@sha256:…`; ImageError for anything else, tags among it."""
    found = _FORM.fullmatch(text)
    if not found or len(found["name"]) > LONGEST_NAME:
        what, remedy = "not HOST/REPOSITORY@sha256:…", "a tag may move, a digest does not"
        raise ImageError(what, where=repr(text[:200]), remedy=remedy)
    host, name = found["host"], found["name"]
    bare = host in HUB and "/" not in name  # the hub's own images are in a folder that their names leave out
    return Reference(host=host, repository=f"library/{name}" if bare else name, digest=digests.parse(found["digest"]))
