"""The files of images/bases/<kind>: what is laid over a base, and how mmdebstrap is prepared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.oci import digest as digests
from torchkiln.oci.image import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.oci.digest import Digest

RECIPES = Path(__file__).parents[3] / "images" / "bases"
"""Where the checkout keeps them, one folder per kind."""
_EXCLUDES = "etc/dpkg/dpkg.cfg.d/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The files of images/bases/<kind>."""

    setup: str = ""
    """Text of the hook that runs before the first package, where there is one."""
    rootfs: Mapping[str, bytes]
    """Files laid over the userland, by path."""

    @property
    def digest(self) -> Digest:
        """Names exactly this recipe in a layer's key."""
        files = {path: digests.of_bytes(data) for path, data in self.rootfs.items()}
        return digests.of_bytes(canonical([self.setup, files]))

    @property
    def excludes(self) -> tuple[str, ...]:
        """What dpkg leaves out, now as in derived images."""
        texts = (data.decode() for path, data in sorted(self.rootfs.items()) if path.startswith(_EXCLUDES))
        return tuple(line for text in texts for line in text.splitlines() if line.startswith("path-"))


def read(kind: str, folder: Path = RECIPES) -> Recipe:
    """The recipe of a kind of base."""
    rootfs, setup = folder / kind / "rootfs", folder / kind / "setup.sh"
    files = {str(path.relative_to(rootfs)): path.read_bytes() for path in sorted(rootfs.rglob("*")) if path.is_file()}
    return Recipe(setup=setup.read_text() if setup.is_file() else "", rootfs=files)
