"""What the Docker engine promises beyond the contract."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import tarfile
import termios
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING

import docker as sdk
import pytest

from torchkiln import rootfs
from torchkiln.engines import Command, archive, table
from torchkiln.engines.docker import Docker, reads_zstd
from torchkiln.errors import EngineError, ImageError, UsageError
from torchkiln.layers.recompress import recompress
from torchkiln.oci import digest as digests
from torchkiln.oci.compression import Compression
from torchkiln.oci.image import config_bytes, manifest_descriptor
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from docker import DockerClient

    from torchkiln.home import Home
    from torchkiln.oci.image import Image

RUNNER = """
import sys
from pathlib import Path
from torchkiln.engines import Command
from torchkiln.engines.docker import Docker
from torchkiln.oci import load

found = load.layout(f"{sys.argv[1]}:toy")
command = Command(argv=("sh", "-c", "echo begun; sleep 600"))
Docker(found.store).run(found.image, command, output=lambda piece: print(piece, flush=True))
"""


@pytest.fixture
def client() -> Iterator[DockerClient]:
    """A look from outside."""
    with closing(sdk.from_env()) as opened:
        yield opened


@pytest.fixture
def docker(store: Store) -> Docker:
    """The engine over this test's store."""
    return Docker(store)


def test_archive_is_a_tar_of_blobs(store: Store, toy: Image) -> None:
    """What is sent holds both kinds of index and each blob once, under its digest."""
    doubled = replace(toy, layers=(*toy.layers, toy.layers[1]))
    pieces = list(archive.stream(doubled, store, ["torchkiln/toy:latest"]))
    assert max(map(len, pieces)) <= digests.CHUNK
    with tarfile.open(fileobj=BytesIO(b"".join(pieces))) as sent:
        names = sent.getnames()
        blobs = [name for name in names if name.startswith("blobs/sha256/")]
        for name in blobs:
            content = sent.extractfile(name)
            assert content is not None
            assert digests.of_bytes(content.read()) == f"sha256:{name.rpartition('/')[2]}"
    assert set(names) - set(blobs) == {"oci-layout", "index.json", "manifest.json"}
    assert len(blobs) == len(set(blobs)) == 4


@pytest.fixture
def mixed(store: Store, toy: Image) -> Image:
    """The toy with its first layer in zstd, as an image on another's base has both forms."""
    first, *others = toy.layers
    return replace(toy, layers=(recompress(store, first, Compression(kind="zstd", level=3)), *others))


def test_archive_has_zstd_layers_unpacked(store: Store, toy: Image, mixed: Image) -> None:
    """To an engine that may not read zstd: each blob's digest is right, and the config is that of the gzip image."""
    for zstd, expected in ((False, archive.plain(mixed)), (True, mixed)):
        sent = b"".join(archive.stream(mixed, store, ["torchkiln/toy:latest"], zstd=zstd))
        with tarfile.open(fileobj=BytesIO(sent)) as tar:
            blobs = {name.rpartition("/")[2]: tar.extractfile(name) for name in tar.getnames() if "sha256" in name}
            for name, content in blobs.items():
                assert content is not None
                assert digests.of_bytes(content.read()) == f"sha256:{name}"
        documents = (manifest_descriptor(expected).digest, digests.of_bytes(config_bytes(toy)))
        digest = {*documents, *(layer.descriptor.digest for layer in expected.layers)}
        assert {f"sha256:{name}" for name in blobs} == digest
    assert archive.plain(toy) == toy


def test_archive_of_a_layer_that_lies(store: Store, mixed: Image) -> None:
    """Another tar under a layer's name is not sent on."""
    first, *others = mixed.layers
    lie = replace(mixed, layers=(replace(first, diff_id=digests.of_bytes(b"other")), *others))
    with pytest.raises(ImageError, match="another tar"):
        list(archive.stream(lie, store, []))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}, True),
        ({"DriverStatus": [["Backing Filesystem", "extfs"], ["Supports d_type", "true"]]}, False),
        ({"DriverStatus": None}, False),
        ({}, False),
    ],
)
def test_which_engines_get_zstd(told: dict[str, object], expected: object) -> None:
    """Those with containerd's store, which keeps blobs; Podman and the older stores of Docker get plain tars."""
    assert reads_zstd(told) == expected


@pytest.mark.docker
def test_load_of_zstd(docker: Docker, toy: Image, mixed: Image, client: DockerClient) -> None:
    """The engine has the image under the id of the gzip one, whichever way its store takes it, and runs it."""
    unique = replace(mixed, config=replace(mixed.config, labels={"test": str(time.time_ns())}))
    found = docker.load(unique, ["torchkiln/test-load:zstd"])
    assert found in {digests.of_bytes(config_bytes(unique)), manifest_descriptor(unique).digest}
    assert docker.run(unique, Command(argv=("echo", "hello"))).stdout == b"hello\n"
    saved = {layer.diff_id for layer in toy.layers}
    assert set(client.images.get(found).attrs["RootFS"]["Layers"]) == saved
    client.images.remove(found, force=True)


@pytest.mark.docker
def test_load(docker: Docker, toy: Image, client: DockerClient) -> None:
    """An image is loaded under its tags, with its own id; a second time nothing is sent, also for another tag."""
    unique = replace(toy, config=replace(toy.config, labels={"test": str(time.time_ns())}))
    ids = {digests.of_bytes(config_bytes(unique)), manifest_descriptor(unique).digest}
    first = docker.load(unique, ["torchkiln/test-load:one"])
    assert first in ids
    docker.store.path(unique.layers[0].descriptor.digest).unlink()
    assert docker.load(unique, ["torchkiln/test-load:two"]) == first
    found = client.images.get("torchkiln/test-load:two")
    assert (found.id, sorted(found.tags)) == (first, ["torchkiln/test-load:one", "torchkiln/test-load:two"])
    client.images.remove(first, force=True)


@pytest.mark.docker
def test_load_that_fails(docker: Docker, toy: Image) -> None:
    """A layer that is not what the config says is refused by the engine, and that is an EngineError."""
    swapped = tuple(replace(layer, diff_id=digests.of_bytes(layer.diff_id.encode())) for layer in toy.layers)
    with pytest.raises(EngineError, match="load"):
        docker.load(replace(toy, layers=swapped), ["torchkiln/test-load:bad"])


@pytest.mark.docker
def test_image_of_the_engine(docker: Docker, toy: Image, tmp_path: Path) -> None:
    """`docker-daemon:NAME` reads back the same config and tars; an unknown name is an error."""
    docker.load(toy, ["torchkiln/test-save:latest"])
    found = table.open_image("docker-daemon:torchkiln/test-save:latest", Store(tmp_path / "scratch"))
    assert [layer.diff_id for layer in found.image.layers] == [layer.diff_id for layer in toy.layers]
    assert found.image.config == toy.config
    assert found.digest in {digests.of_bytes(config_bytes(toy)), manifest_descriptor(toy).digest}
    for unknown in ("torchkiln/none:such", "No Name"):
        with pytest.raises(EngineError) as caught:
            table.open_image(f"docker-daemon:{unknown}", Store(tmp_path / "scratch"))
        assert unknown in caught.value.what
        assert caught.value.remedy


@pytest.mark.docker
def test_image_of_the_engine_is_run_as_it_is(
    docker: Docker, toy: Image, client: DockerClient, tmp_path: Path, home: Home
) -> None:
    """What was read from the engine is run by its own id: no second image is left there in our words."""
    docker.load(toy, ["torchkiln/test-derive:base"])
    container = client.containers.create("torchkiln/test-derive:base", network_mode="none")
    made = container.commit("torchkiln/test-derive", "made", changes="ENV MADE=here")
    container.remove()
    before = {image.id for image in client.images.list(all=True)}
    scratch = Store(tmp_path / "scratch")
    found = table.open_image("docker-daemon:torchkiln/test-derive:made", scratch)
    engine = table.pick("docker", scratch, partial(rootfs.tree, home, scratch), found)
    assert engine.run(found.image, Command(argv=("sh", "-c", "echo $MADE"))).stdout == b"here\n"
    assert {image.id for image in client.images.list(all=True)} == before
    client.images.remove(str(made.id), force=True)
    client.images.remove("torchkiln/test-derive:base")


@pytest.mark.docker
def test_tags_are_names(docker: Docker, toy: Image, client: DockerClient) -> None:
    """A tag may leave out `:latest`, the registry's port is no tag, and what is no name is refused with a remedy."""
    known = docker.load(toy, ["torchkiln/test-tags"])
    assert docker.load(toy, ["127.0.0.1:5055/torchkiln/test-tags"]) == known
    for name in ("torchkiln/test-tags:latest", "127.0.0.1:5055/torchkiln/test-tags:latest"):
        assert client.images.get(name).id == known
        client.images.remove(name)
    with pytest.raises(UsageError, match="not a name"):
        docker.load(toy, ["Not A Name"])


@pytest.mark.docker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays(docker: Docker, toy: Image, client: DockerClient, number: int) -> None:
    """Ctrl-C removes the container at once; what kill -9 leaves, the next run removes."""
    docker.store.put_image(toy, "toy")
    command = [sys.executable, "-c", RUNNER, str(docker.store.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert b"begun" in parent.stdout.readline()
        parent.send_signal(number)
        parent.wait(60)
    if number == signal.SIGKILL:
        docker.run(toy, Command(argv=("true",)))
    owners = [row.labels.get("org.torchkiln.owner", "") for row in client.containers.list(all=True)]
    assert not [owner for owner in owners if owner.endswith(f":{parent.pid}")]


def test_no_engine(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Home) -> None:
    """Without one, `lacks` says where it looked, and asking for it by name is an error that says so, too."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "none.sock" in Docker(store).lacks()
    trees = partial(rootfs.tree, home, store)
    with pytest.raises(EngineError, match="docker does not work here"):
        table.pick("docker", store, trees)
    with pytest.raises(UsageError, match="no engine 'podman'"):
        table.pick("podman", store, trees)
    with pytest.raises(ImageError, match="no image reference"):
        table.open_image("http://x", store)


@pytest.mark.sandbox
def test_the_choice_falls_to_the_sandbox(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Home
) -> None:
    """`auto` takes what works."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert table.pick("auto", store, partial(rootfs.tree, home, store)).name == "sandbox"
    assert os.environ["DOCKER_HOST"].endswith("none.sock")


@pytest.mark.docker
def test_shell_on_a_terminal(docker: Docker, toy: Image) -> None:
    """A shell in a container has our terminal's size, takes Ctrl-C, and gives its status."""
    docker.store.put_image(toy, "toy")
    child, ours = pty.fork()
    if child == 0:  # pragma: no cover
        script = (
            RUNNER.partition("command =")[0] + 'sys.exit(Docker(found.store).shell(found.image, Command(argv=("sh",))))'
        )
        os.execv(sys.executable, [sys.executable, "-c", script, str(docker.store.root)])  # noqa: S606  the shell is inside
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    seen = b""

    def read_until(mark: bytes) -> None:
        nonlocal seen
        while mark not in seen:
            seen += os.read(ours, 4096)

    read_until(b"$ ")
    os.write(ours, b"stty size; echo si$((1+1))ze; sleep 60\n")
    read_until(b"si2ze")
    time.sleep(0.3)
    os.write(ours, b"\x03")
    os.write(ours, b"echo in$((1+1))terrupted; exit 4\n")
    read_until(b"in2terrupted")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    os.close(ours)
    assert b"33 77" in seen
