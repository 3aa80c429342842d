"""Run commands with Docker, or Podman by its socket in DOCKER_HOST, through the Docker SDK."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.types import DeviceRequest
from docker.types import Mount as Bind
from docker.utils.socket import frames_iter

from torchkiln.engines import CAPTURED, GRACE, HOSTNAME, Limits, Outcome, archive, devices, names, terminal
from torchkiln.errors import EngineError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import config_bytes, manifest_descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from docker import DockerClient

    from torchkiln.engines import Command
    from torchkiln.oci.image import Image
    from torchkiln.oci.load import Foreign
    from torchkiln.oci.store import Store

OWNER = "org.torchkiln.owner"
"""Label of a container: whose it is, so that the next run removes what a killed one left."""
PATIENCE = 3600
"""Seconds without a byte from the engine: unpacking an image is silent for minutes."""
STDOUT, STDERR = 1, 2
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
            with _client() as client:
                client.ping()
        except EngineError as error:
            return str(error)
        return ""

    def restrictions(self) -> tuple[str, ...]:
        """`limits` where the engine says it can't enforce them, `gpu` where neither it nor this machine shows one."""
        with _client() as client:
            info: dict[str, Any] = client.info()
        bounded = all(info.get(name, True) for name in ("MemoryLimit", "CpuCfsQuota", "PidsLimit"))
        gpu = "nvidia" in (info.get("Runtimes") or {}) or bool(info.get("DiscoveredDevices")) or devices.present()
        return tuple(name for name, possible in (("limits", bounded), ("gpu", gpu)) if not possible)

    def load(self, image: Image, tags: Sequence[str] = ()) -> str:
        """Put the image into the engine, unless it is there, under every tag; its id there.

        UsageError for a tag that no engine takes.
        """
        whole = tuple(names.whole(tag) for tag in tags)
        with _client() as client:
            return _load(client, self.store, image, whole or (_tag(image),))

    def _id(self, client: DockerClient, image: Image) -> str:
        """The id to run it by."""
        if self.there is not None and self.there.loaded and self.there.image == image:
            return self.there.loaded
        return _load(client, self.store, image, (_tag(image),))

    def run(self, image: Image, command: Command, *, output: Callable[[bytes], None] | None = None) -> Outcome:
        """Run to the end; `output` sees stdout and stderr as they come."""
        with _client() as client, _container(client, self._id, image, command, tty=False) as container:
            streams = _attach(client, container, stdin=False)
            try:
                refusal = _start(client, container)
                if refusal is not None:
                    return refusal
                with _timer(container, command.limits.seconds) as expired:
                    kept = _collect(streams, output)
                    status = int(client.api.wait(container)["StatusCode"])
            finally:
                _detach(streams)
            return Outcome(status=status, stdout=kept[STDOUT], stderr=kept[STDERR], timed_out=expired.is_set())

    def shell(self, image: Image, command: Command) -> int:
        """Run attached to this terminal; without one, with output only."""
        if not sys.stdin.isatty():
            return self.run(image, command, output=_print).status
        with _client() as client, _container(client, self._id, image, command, tty=True) as container:
            streams = _attach(client, container, stdin=True)
            try:
                refusal = _start(client, container)
                if refusal is not None:
                    _print(refusal.stderr)
                    return refusal.status
                terminal.connect(streams.fileno(), lambda rows, columns: client.api.resize(container, rows, columns))
                return int(client.api.wait(container)["StatusCode"])
            finally:
                _detach(streams)


def identify(name: str) -> str:
    """The id of an image of the engine; EngineError if it has none of that name."""
    where = f"docker-daemon:{name}"
    with _client() as client:
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
    with _client() as client:
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
    with _client() as client:
        yield from client.api.get_image(name, chunk_size=digests.CHUNK)


def _print(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@contextmanager
def _client() -> Iterator[DockerClient]:
    """A connection, closed after; what the SDK raises becomes an EngineError."""
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        _knock(where)
        with closing(docker.from_env(timeout=PATIENCE)) as client:
            yield client
    except NotFound as error:
        raise EngineError(str(error.explanation), where=where) from error
    except APIError as error:
        raise EngineError(f"Docker refuses: {error.explanation or error}", where=where) from error
    except (DockerException, OSError) as error:
        remedy = "start Docker, or set DOCKER_HOST; the sandbox engine needs neither"
        raise EngineError(f"no Docker engine answers: {error}", where=where, remedy=remedy) from error


def _knock(where: str) -> None:
    """Connect once ourselves: the SDK forgets to close a socket on which nobody answers."""
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(where.removeprefix("unix://"))


def _tag(image: Image) -> str:
    """A name for an image that is loaded only to be run: engines may drop one without any."""
    return f"torchkiln/image:{digests.encoded(digests.of_bytes(config_bytes(image)))[:12]}"


def reads_zstd(told: Mapping[str, Any]) -> bool:
    """Whether an engine, by what it tells of itself, takes zstd layers out of an archive: with containerd's store.

    That one keeps the blobs as they come, so that the image can be pushed on under its digest. The older stores keep
    no blobs but only what is in them, and read no zstd before Docker 23: to them it makes no difference.
    """
    status = told.get("DriverStatus") or ()
    return any("io.containerd.snapshotter.v1" in row for row in status)


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


@contextmanager
def _container(
    client: DockerClient, known: Callable[[DockerClient, Image], str], image: Image, command: Command, *, tty: bool
) -> Iterator[str]:
    """A container that is gone afterwards, with all its processes."""
    _sweep(client)
    created = client.api.create_container(
        known(client, image),
        command=list(command.argv) or None,
        entrypoint=None if command.entrypoint is None else list(command.entrypoint) or [""],  # [""] takes it away
        user=command.user or None,
        environment=[*(f"{name}={value}" for name, value in command.env.items()), *command.unset],
        working_dir=command.working_dir or None,
        hostname=HOSTNAME,
        tty=tty,
        stdin_open=tty,
        labels={OWNER: _owner(os.getpid())},
        host_config=client.api.create_host_config(**_host(command)),
    )
    container = str(created["Id"])
    try:
        yield container
    finally:
        with suppress(NotFound):
            client.api.remove_container(container, force=True, v=True)


def _host(command: Command) -> dict[str, Any]:
    """What the SDK calls host config."""
    limits = command.limits
    missing = [mount.source for mount in command.mounts if not mount.source.exists()]
    if missing:
        raise EngineError(f"{missing[0]} does not exist, so it cannot be mounted")
    stated: dict[str, Any] = {
        "mounts": [
            Bind(mount.target, str(mount.source.absolute()), type="bind", read_only=not mount.writable)
            for mount in command.mounts
        ],
        "tmpfs": dict(command.tmpfs),
        "read_only": command.read_only,
        "network_mode": None if command.network else "none",
        "shm_size": limits.shm_bytes or Limits().shm_bytes,
    }
    if limits.memory_bytes:
        stated |= {"mem_limit": limits.memory_bytes, "memswap_limit": limits.memory_bytes}
    if limits.cpus:
        stated["nano_cpus"] = int(limits.cpus * 1e9)
    if limits.processes:
        stated["pids_limit"] = limits.processes
    return stated | (_gpus() if command.gpus else {})


def _gpus() -> dict[str, Any]:
    """AMD's devices with their numeric groups, else NVIDIA's through a device request."""
    nodes = [path for path in (Path("/dev/kfd"), *Path("/dev/dri").glob("*")) if path.is_char_device()]
    if Path("/dev/kfd") in nodes:
        groups = sorted({str(path.stat().st_gid) for path in nodes})
        return {"devices": [f"{path}:{path}:rwm" for path in nodes], "group_add": groups}
    return {"device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])]}


def _owner(pid: int) -> str:
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{pid}"


def _sweep(client: DockerClient) -> None:
    """Remove containers of processes of this machine that were killed before they could."""
    boot = _owner(0).removesuffix("0")
    for row in client.api.containers(all=True, filters={"label": OWNER}):
        owner = str(row["Labels"].get(OWNER, ""))
        if owner.startswith(boot) and not Path("/proc", owner.removeprefix(boot)).exists():
            with suppress(APIError):  # another run removes it, too
                client.api.remove_container(row["Id"], force=True, v=True)


def _attach(client: DockerClient, container: str, *, stdin: bool) -> Any:  # noqa: ANN401  a socket of the SDK's own
    wanted = {"stdin": int(stdin), "stdout": 1, "stderr": 1, "stream": 1}
    return client.api.attach_socket(container, params=wanted)


def _detach(streams: Any) -> None:  # noqa: ANN401
    """Close the socket and the response it was taken from, which the SDK leaves open."""
    streams._response.close()  # noqa: SLF001
    streams.close()


def _start(client: DockerClient, container: str) -> Outcome | None:
    """Start it; an outcome instead if the command can't be executed, with the status that Docker's client gives."""
    try:
        client.api.start(container)
    except APIError as error:
        said = str(error.explanation or error)
        for status, marks in (
            (127, ("executable file not found", "no such file or directory")),
            (126, ("permission denied", "exec format error", "is a directory")),
        ):
            if any(mark in said.lower() for mark in marks):
                return Outcome(status=status, stdout=b"", stderr=said.encode())
        raise
    return None


@contextmanager
def _timer(container: str, seconds: float) -> Iterator[threading.Event]:
    """Stop the container when its time is over; the event tells that it was."""
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        with suppress(EngineError), _client() as client:  # the main thread's connection is not shared
            client.api.stop(container, timeout=GRACE)

    timer = threading.Timer(seconds, stop)
    if seconds:
        timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        if seconds:
            timer.join()


def _collect(streams: Any, output: Callable[[bytes], None] | None) -> dict[int, bytes]:  # noqa: ANN401
    kept = {STDOUT: bytearray(), STDERR: bytearray()}
    for number, piece in frames_iter(streams, tty=False):  # type: ignore[no-untyped-call]
        if output is not None:
            output(piece)
        kept[number] += piece[: max(0, CAPTURED - len(kept[number]))]
    return {number: bytes(content) for number, content in kept.items()}
