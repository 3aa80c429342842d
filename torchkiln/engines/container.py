"""A container of the Docker engine: created, watched, ended in time, and gone afterwards."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, NotFound
from docker.types import DeviceRequest
from docker.types import Mount as Bind
from docker.utils.socket import frames_iter

from torchkiln.engines import CAPTURED, GRACE, HOSTNAME, Limits, Outcome
from torchkiln.engines.dockerclient import connected
from torchkiln.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from docker import DockerClient

    from torchkiln.engines import Command
    from torchkiln.oci.image import Image

OWNER = "org.torchkiln.owner"
"""Label of a container: whose it is, so that the next run removes what a killed one left."""
STDOUT, STDERR = 1, 2


@contextmanager
def created(
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


def attach(client: DockerClient, container: str, *, stdin: bool) -> Any:  # noqa: ANN401  a socket of the SDK's own
    """The socket of its streams."""
    wanted = {"stdin": int(stdin), "stdout": 1, "stderr": 1, "stream": 1}
    return client.api.attach_socket(container, params=wanted)


def detach(streams: Any) -> None:  # noqa: ANN401
    """Close the socket and the response it was taken from, which the SDK leaves open."""
    streams._response.close()  # noqa: SLF001
    streams.close()


def start(client: DockerClient, container: str) -> Outcome | None:
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
def timer(container: str, seconds: float) -> Iterator[threading.Event]:
    """Stop the container when its time is over; the event tells that it was."""
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        with suppress(EngineError), connected() as client:  # the main thread's connection is not shared
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


def collect(streams: Any, output: Callable[[bytes], None] | None) -> dict[int, bytes]:  # noqa: ANN401
    """What it says until its end, by stream, as much as is kept; `output` sees all of it as it comes."""
    kept = {STDOUT: bytearray(), STDERR: bytearray()}
    for number, piece in frames_iter(streams, tty=False):  # type: ignore[no-untyped-call]
        if output is not None:
            output(piece)
        kept[number] += piece[: max(0, CAPTURED - len(kept[number]))]
    return {number: bytes(content) for number, content in kept.items()}
