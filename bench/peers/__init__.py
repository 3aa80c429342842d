"""Other ways to make the same image, as Debian offers them: BuildKit in Docker, and buildah, both with uv."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torchkiln import process
from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UV = "localhost/bench/uv"
"""The image that holds uv; localhost, since buildah would look for it in a registry otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A Dockerfile, and how it is built."""

    name: str
    what: str
    file: Path


PLAIN = Recipe(
    name="plain",
    what="one RUN with uv, as people write it",
    file=Path(__file__).with_name("Dockerfile.plain"),
)
TUNED = Recipe(
    name="tuned",
    what="with bytecode, in layers, the cheapest compression there is",
    file=Path(__file__).with_name("Dockerfile.tuned"),
)
RECIPES = (PLAIN, TUNED)
SEND = Path(__file__).with_name("Dockerfile.send")


class Peer(Protocol):
    """Builds with one recipe; nothing it is asked for reaches another machine."""

    @property
    def name(self) -> str:
        """In tables."""

    @property
    def what(self) -> str:
        """In a sentence."""

    def load(self, base: str, archive: Path) -> None:
        """Have a base under this name; it stays until the peer is gone."""

    def send(self, context: Path, *, base: str) -> None:
        """Have the context at hand, where that takes more than its path."""

    def build(self, context: Path, *, base: str, tag: str) -> None:
        """Make an image of the context's wheels on that base."""

    def push(self, tag: str, to: str, *, compression: str = "") -> None:
        """Send it to `HOST/REPOSITORY:TAG`; `compression` is for peers that have a choice."""

    def forget(self) -> None:
        """Remove what was built and remembered, but not bases and contexts that were sent once."""


def tool(command: Sequence[str], env: Mapping[str, str], *, stdin: Path | None = None) -> str:
    """Run a peer's program to its end; what it printed. HostError with its last words if it fails."""
    if stdin is None:
        done = process.run(command, env=env)
        out, said, status = done.stdout, done.stderr, done.returncode
    else:
        with stdin.open("rb") as source:
            running = process.start(command, env=env, stdin=source.fileno())
            out, said = running.communicate()
            status = running.returncode
    if status != 0:
        last = said.decode(errors="replace").strip()[-1500:]
        raise HostError(f"{command[0]} ended with {status}: {last}", where=" ".join(command[1:6]))
    return out.decode(errors="replace")
