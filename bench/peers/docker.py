"""BuildKit as it is built into Docker 20.10, and `docker push`, whose compression nobody can choose."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import services
from bench.peers import SEND, UV, Recipe, tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CLIENT = "/usr/bin/docker"
"""Debian's: another one along PATH may want plugins that are not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """One recipe in one engine."""

    recipe: Recipe
    client: Mapping[str, str]
    """Variables by which the engine is reached."""
    pid: int
    """The engine's process; builds run below it."""

    @property
    def name(self) -> str:
        """In tables."""
        return f"docker {self.recipe.name}"

    @property
    def what(self) -> str:
        """In a sentence."""
        return f"BuildKit and docker push: {self.recipe.what}"

    def load(self, base: str, archive: Path) -> None:
        """Unpack the base's layer as an image."""
        self.call("import", "-", base, stdin=archive)

    def send(self, context: Path, *, base: str) -> None:
        """A context is sent once, and only differences later."""
        self._build(SEND, context, base, "sent")

    def build(self, context: Path, *, base: str, tag: str) -> None:
        """Without network."""
        self._build(self.recipe.file, context, base, tag)

    def _build(self, file: Path, context: Path, base: str, tag: str) -> None:
        given = ["--build-arg", f"BASE={base}", "--file", str(file), "--tag", tag, str(context)]
        self.call("build", "--quiet", "--network", "none", *given)

    def push(self, tag: str, to: str, *, compression: str = "") -> None:
        """Gzip at Go's default level, one thread for each layer."""
        del compression
        self.call("tag", tag, to)
        self.call("push", "--quiet", to)

    def pull(self, name: str) -> None:
        """From a registry."""
        self.call("pull", "--quiet", name)

    def python(self, image: str, *arguments: str) -> str:
        """What the image's Python prints."""
        return self.call("run", "--rm", "--network", "none", image, "python", *arguments)

    def forget(self) -> None:
        """Images but for bases and uv, and the build cache but for the contexts."""
        listed = self.call("images", "--format", "{{.Repository}}:{{.Tag}}").split()
        built = [name for name in listed if not name.startswith(("localhost/bench/", "<none>"))]
        if built:
            self.call("rmi", "--force", *built)
        self.call("image", "prune", "--force")
        self.call("builder", "prune", "--all", "--force", "--filter", "type=regular")

    def call(self, *arguments: str, stdin: Path | None = None) -> str:
        """Run the client."""
        return tool([CLIENT, *arguments], {**os.environ, **self.client}, stdin=stdin)


@contextmanager
def running(folder: Path, uv: Path, *recipes: Recipe) -> Iterator[tuple[Docker, ...]]:
    """An engine that has uv, and a peer for each recipe."""
    with services.engine(folder) as engine:
        peers = tuple(Docker(recipe=recipe, client=engine.client, pid=engine.pid) for recipe in recipes)
        archive = folder / "uv.tar"
        tool(["tar", "-C", str(uv.parent), "-cf", str(archive), uv.name], os.environ)
        peers[0].load(UV, archive)
        yield peers
