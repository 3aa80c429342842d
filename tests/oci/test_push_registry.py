"""What real registries and engines make of what is pushed."""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import docker as sdk
import pytest

from tests.toyregistry import tar
from torchkiln.errors import PushError
from torchkiln.oci import digest as digests
from torchkiln.oci.copying import copy
from torchkiln.oci.image import LAYER_TYPE, Config, Image, Layer, manifest_descriptor
from torchkiln.oci.pull import pull
from torchkiln.oci.push import push
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = tar({"etc/one": b"1" * 5000})
CHUNK = 2 << 20
HASHED = "$2b$05$abcdefghijklmnopqrstuuQDoL5Sa/TtfS/XN4AY/jgq.HBbO1BTu"
"""The password `word`."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Where layers lie."""
    return Store(tmp_path / "store")


def zipped(store: Store, *tars: bytes) -> Image:
    """An image of gzipped layers."""
    layers = []
    for data in tars:
        packed = store.put(gzip.compress(data, mtime=0), LAYER_TYPE)
        layers.append(Layer(descriptor=packed, diff_id=digests.of_bytes(data), unpacked_size=len(data)))
    return Image(config=Config(env={"A": "b"}), layers=tuple(layers))


def novel() -> bytes:
    """A layer that no registry has yet."""
    return tar({"etc/new": os.urandom(5 << 20)})


@pytest.mark.registry
def test_a_real_registry_has_what_was_pushed(store: Store, tmp_path: Path) -> None:
    """In chunks; skopeo inspects it, we pull it back, and a copy next door sends nothing."""
    place = f"{os.environ['TORCHKILN_TEST_REGISTRY']}/torchkiln-test/push"
    image = zipped(store, SMALL, novel())
    done = push(image, store, f"{place}:one", environment={}, chunk=CHUNK)
    assert done.blobs[image.layers[1].descriptor.digest] == "sent"
    command = ["skopeo", "inspect", "--tls-verify=false", f"docker://{place}:one"]
    seen = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert seen["Digest"] == done.digest == manifest_descriptor(image).digest
    assert seen["Layers"] == [layer.descriptor.digest for layer in image.layers]
    pulled = pull(f"{place}@{done.digest}", Store(tmp_path / "other"), machine="x86_64", environment={})
    assert pulled.image == image
    near = copy(f"{place}@{done.digest}", f"{place}-copy-{done.digest[-8:]}:two", environment={})
    assert (near.digest, near.sent, set(near.blobs.values())) == (done.digest, 0, {"mounted"})


@pytest.mark.registry
def test_a_real_registry_takes_two_pushes_at_once(store: Store) -> None:
    """Of the same new blobs."""
    place = f"{os.environ['TORCHKILN_TEST_REGISTRY']}/torchkiln-test/push"
    image = zipped(store, novel(), novel())
    with ThreadPoolExecutor(2) as pool:
        tags = pool.map(lambda tag: push(image, store, f"{place}:{tag}", environment={}, chunk=CHUNK), "ab")
    assert {done.digest for done in tags} == {manifest_descriptor(image).digest}


@contextmanager
def served(folder: Path, http: str = "", more: str = "") -> Iterator[str]:
    """A docker-registry with these settings; its host and port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "registry.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\n"
        f"http: {{addr: {host!r}{http}}}\n{more}"
    )
    command = ["docker-registry", "serve", str(folder / "registry.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while server.poll() is None:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", int(host.rpartition(":")[2]))) == 0:
                        break
                time.sleep(0.02)
            yield host
        finally:
            server.kill()


@pytest.mark.registry
def test_a_real_registry_asks_for_a_password(store: Store, tmp_path: Path) -> None:
    """What `docker login` keeps opens it; nothing else does; a copy to there asks each side for its own."""
    open_place = f"{os.environ['TORCHKILN_TEST_REGISTRY']}/torchkiln-test/push"
    image = zipped(store, SMALL, novel())
    (tmp_path / "htpasswd").write_text(f"user:{HASHED}\n")
    with served(tmp_path, more=f"auth: {{htpasswd: {{realm: toy, path: {tmp_path}/htpasswd}}}}\n") as host:
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": "dXNlcjp3b3Jk"}}}))
        environment = {"DOCKER_CONFIG": str(tmp_path)}
        for wrong in ({}, {"DOCKER_CONFIG": "/nonexistent"}):
            with pytest.raises(PushError, match="refuses"):
                push(image, store, f"{host}/x/y:1", environment=wrong)
        done = push(image, store, f"{host}/x/y:1", environment=environment, chunk=CHUNK)
        out = copy(f"{host}/x/y@{done.digest}", f"{open_place}:copied", environment=environment, chunk=CHUNK)
        back = copy(f"{open_place}@{done.digest}", f"{host}/x/z:2", environment=environment, chunk=CHUNK)
        assert out.digest == back.digest == done.digest
        assert set(out.blobs.values()) <= {"sent", "there"}
        command = ["skopeo", "inspect", "--tls-verify=false", "--creds=user:word", f"docker://{host}/x/z:2"]
        seen = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert seen["Digest"] == done.digest


@pytest.mark.registry
@pytest.mark.docker
def test_docker_pulls_what_was_pushed(store: Store) -> None:
    """By digest, with the config that we gave it."""
    place = f"{os.environ['TORCHKILN_TEST_REGISTRY']}/torchkiln-test/push"
    image = zipped(store, SMALL, novel())
    done = push(image, store, f"{place}:docker", environment={}, chunk=CHUNK)
    with closing(sdk.from_env()) as client:
        found = client.images.pull(f"{place}@{done.digest}")
        try:
            assert found.attrs["Config"]["Env"] == ["A=b"]
            assert found.attrs["RootFS"]["Layers"] == [layer.diff_id for layer in image.layers]
        finally:
            client.images.remove(f"{place}@{done.digest}")


@pytest.mark.registry
def test_a_private_ca_is_trusted_where_it_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In SSL_CERT_FILE, as for every fetch; a registry that nobody vouches for is not talked to."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    named = ["-subj", "/CN=registry.example", "-addext", "subjectAltName=DNS:registry.example"]
    subprocess.run([*made, *named], check=True, capture_output=True)
    image = zipped(store, SMALL, novel())
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with served(tmp_path, http=f", tls: {{certificate: {certificate}, key: {key}}}") as host:
        port = int(host.rpartition(":")[2])
        here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: here)
        place = f"registry.example:{port}/x:1"
        with pytest.raises(PushError, match="CERTIFICATE_VERIFY_FAILED"):
            push(image, store, place, environment={}, sleep=lambda _seconds: None)
        done = push(image, store, place, environment={"SSL_CERT_FILE": certificate}, chunk=CHUNK)
        assert done.digest == manifest_descriptor(image).digest


def pass_on(one: Any, other: Any, limit: int = 1 << 60) -> bool:  # noqa: ANN401  sockets, patched for unit tests
    """Bytes from one socket to another; whether there were more than the limit."""
    while limit > 0:
        try:
            data = one.recv(min(1 << 16, limit))
            other.sendall(data)
        except OSError:
            return False
        if not data:
            return False
        limit -= len(data)
    return True


def forward(client: socket.socket, host: str, limit: int) -> None:
    """A connection to a registry, reset after so many bytes."""
    with client, socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))) as server:
        back = threading.Thread(target=pass_on, args=(server, client))
        back.start()
        if pass_on(client, server, limit):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.shutdown(socket.SHUT_RD)
        server.shutdown(socket.SHUT_RDWR)
        back.join()


@contextmanager
def breaking(host: str, after: list[int]) -> Iterator[str]:
    """A way to a registry on which connections are reset, each after so many bytes; its host and port."""
    threads: list[threading.Thread] = []

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            limit = after.pop(0) if after else 1 << 60
            threads.append(threading.Thread(target=forward, args=(client, host, limit)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    for each in threads:
        each.join()


@pytest.mark.registry
def test_a_way_that_breaks_again_and_again_leads_to_a_real_registry(store: Store) -> None:
    """Connections are reset at all kinds of places; what arrives is whole."""
    image = zipped(store, SMALL, novel(), novel())
    after = [3 << 20, 1500, 5 << 20, 2 << 20, 100, 1 << 20, 4 << 20]
    with breaking(os.environ["TORCHKILN_TEST_REGISTRY"], after) as host:
        done = push(
            image, store, f"{host}/torchkiln-test/broken:1", environment={}, chunk=CHUNK, sleep=lambda _seconds: None
        )
        assert not after
        assert done.digest == manifest_descriptor(image).digest
    place = f"{os.environ['TORCHKILN_TEST_REGISTRY']}/torchkiln-test/broken"
    pulled = pull(f"{place}@{done.digest}", Store(store.root / "other"), machine="x86_64", environment={})
    assert pulled.image == image
