"""buildah without a daemon; it can compress faster than Docker, with all cores, or with zstd."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import services
from bench.peers import TUNED, UV, Recipe, tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CHEAPEST = "gzip:1"
"""What the tuned one sends: everybody can read it, as with our layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildah:
    """One recipe in a storage of its own."""

    recipe: Recipe
    storage: Path
    uv: Path

    @property
    def name(self) -> str:
        """In tables."""
        return f"buildah {self.recipe.name}"

    @property
    def what(self) -> str:
        """In a sentence."""
        return f"buildah build and push: {self.recipe.what}"

    def load(self, base: str, archive: Path) -> None:
        """Unpack the base's layer as an image."""
        (container,) = self.call("from", "scratch").split()
        self.call("add", "--quiet", container, str(archive), "/")
        self.call("commit", "--quiet", "--rm", container, base)

    def send(self, context: Path, *, base: str) -> None:
        """Nothing: there is no daemon to send it to."""

    def build(self, context: Path, *, base: str, tag: str) -> None:
        """In a chroot; the context is read where it lies."""
        given = ["--build-arg", f"BASE={base}", "--file", str(self.recipe.file), "--tag", tag, str(context)]
        layers = f"--layers={'true' if self.recipe is TUNED else 'false'}"
        self.call("build", "--quiet", layers, "--build-context", f"{UV}={self.uv.parent}", *given)

    def push(self, tag: str, to: str, *, compression: str = "") -> None:
        """Gzip with all cores at its default level; the tuned one at the lowest."""
        kind, _, level = (compression or (CHEAPEST if self.recipe is TUNED else "")).partition(":")
        chosen = ["--compression-format", kind] if kind else []
        chosen += ["--compression-level", level] if level else []
        self.call("push", "--quiet", "--tls-verify=false", "--format", "oci", *chosen, tag, f"docker://{to}")

    def forget(self) -> None:
        """Images but for bases."""
        self.call("rm", "--all")
        listed = self.call("images", "--all", "--format", "{{.ID}} {{.Name}}").splitlines()
        built = [line.split()[0] for line in listed if "localhost/bench/" not in line]
        if built:
            self.call("rmi", "--force", *dict.fromkeys(built))

    def call(self, *arguments: str) -> str:
        """Run buildah on this storage."""
        return tool(["buildah", *self._global(), *arguments], _environment())

    def _global(self) -> list[str]:
        return ["--root", f"{self.storage}/root", "--runroot", f"{self.storage}/run", "--storage-driver", "overlay"]


def _environment() -> Mapping[str, str]:
    return {**os.environ, "BUILDAH_ISOLATION": "chroot"}  # needs no network, and no engine's permission


@contextmanager
def running(folder: Path, uv: Path, *recipes: Recipe) -> Iterator[tuple[Buildah, ...]]:
    """A storage for all recipes, gone at the end."""
    storage = folder / "buildah"
    storage.mkdir()
    try:
        yield tuple(Buildah(recipe=recipe, storage=storage, uv=uv) for recipe in recipes)
    finally:
        services.remove(storage)
