"""Run commands with Docker, or Podman by its socket in DOCKER_HOST, through the Docker SDK."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, NotFound

from torchkiln.engines import Outcome, archive, container, devices, names, terminal
from torchkiln.engines.container import STDERR, STDOUT
from torchkiln.engines.dockerclient import connected
from torchkiln.errors import EngineError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import config_bytes, manifest_descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from docker import DockerClient

    from torchkiln.engines import Command
    from torchkiln.oci.image import Image
    from torchkiln.oci.load import Foreign
    from torchkiln.oci.store import Store

_TAIL = 15
"""Lines of a failed build that are shown."""


@dataclass(frozen=True, slots=True)
class Docker:
    """The engine at DOCKER_HOST, or at the usual socket."""

    store: Store
    name: str = "docker"
    there: Foreign | None = None
    """An image that was read from this engine: it is run as it is there, not loaded a second time in our words."""

    def lacks(self) -> str:
        """Whether an engine answers."""
        try:
            with connected() as client:
                client.ping()
        except EngineError as error:
            return str(error)
        return ""

    def restrictions(self) -> tuple[str, ...]:
        """`limits` where the engine says it can't enforce them, `gpu` where neither it nor this machine shows one."""
        with connected() as client:
            info: dict[str, Any] = client.info()
        bounded = all(info.get(name, True) for name in ("MemoryLimit", "CpuCfsQuota", "PidsLimit"))
        gpu = "nvidia" in (info.get("Runtimes") or {}) or bool(info.get("DiscoveredDevices")) or devices.present()
        return tuple(name for name, possible in (("limits", bounded), ("gpu", gpu)) if not possible)

    def load(self, image: Image, tags: Sequence[str] = ()) -> str:
        """Put the image into the engine, unless it is there, under every tag; its id there.

        UsageError for a tag that no engine takes.
        """
        whole = tuple(names.whole(tag) for tag in tags)
        with connected() as client:
            return _load(client, self.store, image, whole or (_tag(image),))

    def _id(self, client: DockerClient, image: Image) -> str:
        """The id to run it by."""
        if self.there is not None and self.there.loaded and self.there.image == image:
            return self.there.loaded
        return _load(client, self.store, image, (_tag(image),))

    def run(self, image: Image, command: Command, *, output: Callable[[bytes], None] | None = None) -> Outcome:
        """Run to the end; `output` sees stdout and stderr as they come."""
        with connected() as client, container.created(client, self._id, image, command, tty=False) as running:
            streams = container.attach(client, running, stdin=False)
            try:
                refusal = container.start(client, running)
                if refusal is not None:
                    return refusal
                with container.timer(running, command.limits.seconds) as expired:
                    kept = container.collect(streams, output)
                    status = int(client.api.wait(running)["StatusCode"])
            finally:
                container.detach(streams)
            return Outcome(status=status, stdout=kept[STDOUT], stderr=kept[STDERR], timed_out=expired.is_set())

    def shell(self, image: Image, command: Command) -> int:
        """Run attached to this terminal; without one, with output only."""
        if not sys.stdin.isatty():
            return self.run(image, command, output=_print).status
        with connected() as client, container.created(client, self._id, image, command, tty=True) as running:
            streams = container.attach(client, running, stdin=True)
            try:
                refusal = container.start(client, running)
                if refusal is not None:
                    _print(refusal.stderr)
                    return refusal.status
                terminal.connect(streams.fileno(), lambda rows, columns: client.api.resize(running, rows, columns))
                return int(client.api.wait(running)["StatusCode"])
            finally:
                container.detach(streams)


def _tag(image: Image) -> str:
    """A name for an image that is loaded only to be run: engines may drop one without any."""
    return f"torchkiln/image:{digests.encoded(digests.of_bytes(config_bytes(image)))[:12]}"


def _load(client: DockerClient, store: Store, image: Image, tags: Sequence[str]) -> str:
    """The id is the config's digest, or with containerd's image store the manifest's."""
    ids = (digests.of_bytes(config_bytes(image)), manifest_descriptor(image).digest)
    for known in ids:
        with suppress(NotFound):
            client.images.get(known)
            for tag in tags:
                client.api.tag(known, *names.split(tag))
            return known
    pieces = archive.stream(image, store, tags, zstd=reads_zstd(client.info()))
    sent = client.api.load_image(pieces)  # type: ignore[no-untyped-call]
    for progress in sent or ():
        if "error" in progress:
            raise EngineError(f"Docker could not load the image: {progress['error']}")
    found = str(client.images.get(tags[0]).id)
    if found not in ids:
        raise EngineError(f"Docker loaded {tags[0]} as {found}, not as {ids[0]}")
    return found


def reads_zstd(told: Mapping[str, Any]) -> bool:
    """Whether an engine, by what it tells of itself, takes zstd layers out of an archive: with containerd's store.

    That one keeps the blobs as they come, so that the image can be pushed on under its digest. The older stores keep
    no blobs but only what is in them, and read no zstd before Docker 23: to them it makes no difference.
    """
    status = told.get("DriverStatus") or ()
    return any("io.containerd.snapshotter.v1" in row for row in status)


def identify(name: str) -> str:
    """The id of an image of the engine; EngineError if it has none of that name."""
    where = f"docker-daemon:{name}"
    with connected() as client:
        try:
            return str(client.images.get(name).id)
        except NotFound as error:
            remedy = f"`docker images` lists what it has; docker pull {name} may fetch it"
            raise EngineError(f"the Docker engine has no image {name}", where=where, remedy=remedy) from error
        except APIError as error:
            what = f"Docker takes {name!r} for no image: {error.explanation or error}"
            raise EngineError(what, where=where, remedy="docker-daemon:NAME[:TAG] or docker-daemon:ID") from error


def build(folder: Path, *, platform: str, where: str) -> str:
    """The id of the image that the engine builds from a folder's Dockerfile; EngineError with what it said last."""
    said: list[str] = []
    with connected() as client:
        try:
            for progress in client.api.build(path=str(folder), platform=platform, rm=True, forcerm=True, decode=True):
                said += [str(progress.get(word, "")).strip() for word in ("stream", "error")]
                if "error" in progress:
                    break
                if identity := (progress.get("aux") or {}).get("ID"):
                    return str(identity)
        except APIError as error:  # it can't even be parsed
            said.append(str(error.explanation or error))
    lines = "\n".join(f"  {line}" for line in list(filter(None, said))[-_TAIL:])
    raise EngineError(f"the Dockerfile does not build:\n{lines}", where=where, remedy="correct it")


def save(name: str) -> Iterator[bytes]:
    """An image of the engine as `docker save` writes it."""
    with connected() as client:
        yield from client.api.get_image(name, chunk_size=digests.CHUNK)


def _print(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
