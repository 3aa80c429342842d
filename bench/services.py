"""What the benchmarks push to and build with: a registry and a Docker engine of their own, gone at the end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from bench.apt import install
from torchkiln import process
from torchkiln.errors import HostError
from torchkiln.oci.registry import MANIFEST_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PATIENCE = 60
"""Seconds until a service must answer."""
BLOBS = "docker/registry/v2/blobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A registry on loopback with nothing in it but what a contestant pushes."""

    address: str
    folder: Path

    @property
    def size(self) -> int:
        """Bytes of all that it holds: blobs, configs and manifests, each once."""
        return sum(path.stat().st_size for path in (self.folder / BLOBS).rglob("data"))

    def image(self, name: str) -> int:
        """Bytes of the layers of `REPOSITORY:TAG`, as a puller fetches them."""
        repository, _, tag = name.partition(":")
        place = f"http://{self.address}/v2/{repository}/manifests/{tag or 'latest'}"
        answer = httpx.get(place, headers={"Accept": ", ".join(MANIFEST_TYPES)}, trust_env=False)
        return sum(layer["size"] for layer in answer.raise_for_status().json()["layers"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A Docker engine of our own."""

    client: Mapping[str, str]
    """Variables by which a client reaches it."""
    pid: int


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """An empty registry in a new folder, which goes with it."""
    install("docker-registry", "docker-registry")
    place = Path(tempfile.mkdtemp(prefix="registry-", dir=folder))
    address = f"127.0.0.1:{free_port()}"
    document = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(place / "data")}},
        "http": {"addr": address},
    }
    (place / "registry.yml").write_text(json.dumps(document))  # JSON is YAML
    command = ["docker-registry", "serve", str(place / "registry.yml")]
    try:
        with _running(command, place / "log", lambda: _answers(address)):
            yield Registry(address=address, folder=place / "data")
    finally:
        remove(place)


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """A Docker engine without networks, in a folder of its own."""
    place = Path(tempfile.mkdtemp(prefix="docker-", dir=folder))
    with tempfile.TemporaryDirectory(prefix="bench-") as short:  # a socket's path has at most 107 bytes
        host = f"unix://{short}/sock"
        command = ["dockerd", "--data-root", str(place / "data"), "--exec-root", f"{short}/exec"]
        command += ["--pidfile", f"{short}/pid", "--host", host, "--bridge", "none", "--iptables=false"]
        client = {"DOCKER_HOST": host, "DOCKER_BUILDKIT": "1", "DOCKER_CONFIG": short}
        try:
            with _running(command, place / "log", lambda: _docker_answers(client)) as pid:
                yield Engine(client=client, pid=pid)
        finally:
            remove(place)


def remove(folder: Path) -> None:
    """Delete what an engine wrote, but nothing that is still mounted there."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((one for one in mounts if one.startswith(f"{folder}/")), reverse=True):
        process.run(["umount", mount])
    process.run(["rm", "-rf", "--one-file-system", str(folder)])


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _running(command: Sequence[str], log: Path, ready: Callable[[], bool]) -> Iterator[int]:
    """A service, from its first answer to its end; HostError with its last words if it never answers."""
    with log.open("wb") as sink:
        service = process.start(command, stdout=sink.fileno(), stderr=subprocess.STDOUT)
    try:
        patience = time.monotonic() + PATIENCE
        while not ready():
            if service.poll() is not None or time.monotonic() > patience:
                last = log.read_text(errors="replace")[-800:]
                raise HostError(f"{command[0]} does not answer: {last}", remedy="run it as root, with nothing confined")
            time.sleep(0.1)
        yield service.pid
    finally:
        service.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            service.wait(30)
        service.kill()
        service.wait()


def _answers(address: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://{address}/v2/", trust_env=False).is_success
    return False


def _docker_answers(client: Mapping[str, str]) -> bool:
    return process.run(["/usr/bin/docker", "version"], env=client).returncode == 0
