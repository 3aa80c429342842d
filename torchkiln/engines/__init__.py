"""Run a command in an image: the Engine protocol.

Guarantees every engine gives: the image is never changed; nothing of the host is visible but the mounts asked
for; exit status as a shell gives it (127 missing command, 126 not executable, 128+n ended by signal n); on
timeout or Ctrl-C every process of the command is gone before `run` returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torchkiln.oci.image import Image

    Trees = Callable[[Image], AbstractContextManager[Path]]
    """How the sandbox gets an image's merged tree, which must not be written to: `rootfs.tree` with home and store."""

HOSTNAME = "torchkiln"
"""What a command finds its machine to be called."""
GRACE = 3
"""Seconds between TERM and KILL."""
CAPTURED = 64 << 20
"""Bytes of each stream that an outcome keeps; more is passed to `output` alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the host made visible in the container."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the command may use at most; zero means the engine's default."""

    seconds: float = 0
    memory_bytes: int = 0
    cpus: float = 0
    processes: int = 0
    shm_bytes: int = 64 << 20
    """Size of /dev/shm; Docker's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command and its surroundings; empty values mean what the image's config says."""

    argv: tuple[str, ...]
    """Replaces Cmd; the image's entrypoint stays in front, as with `docker run IMAGE argv…`."""
    entrypoint: tuple[str, ...] | None = None
    """Replaces the image's entrypoint; `()` runs without one."""
    user: str = ""
    """`uid:gid`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the image's variables, or in place of them."""
    unset: tuple[str, ...] = ()
    """Variables of the image that the command does not get."""
    working_dir: str = ""
    mounts: tuple[Mount, ...] = ()
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    """Path → options, for example {"/tmp": "size=1g,exec"}."""
    read_only: bool = False
    """Root file system read-only."""
    network: bool = False
    gpus: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended."""

    status: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


class Engine(Protocol):
    """Something that runs commands in images of the local store."""

    @property
    def name(self) -> str:
        """`docker` or `sandbox`."""

    def lacks(self) -> str:
        """Why it can't be used on this machine, in words that say what to do; empty if it can."""

    def restrictions(self) -> tuple[str, ...]:
        """What it can't do here, by name: `users`, `limits`, `gpu`, `noexec`; checks that need one answer not-run."""

    def run(self, image: Image, command: Command, *, output: Callable[[bytes], None] | None = None) -> Outcome:
        """Run to the end; `output` sees stdout and stderr as they come. EngineError if it could not be started."""

    def shell(self, image: Image, command: Command) -> int:
        """Run attached to this terminal; the exit status."""
