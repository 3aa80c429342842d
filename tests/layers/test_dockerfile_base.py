"""A base that the Docker engine builds: its layers come out as they are, and what changes is told."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import docker
import pytest

from tests.layers.test_registry_base import FILES
from tests.toyregistry import tar
from torchkiln.errors import BaseError, EngineError
from torchkiln.layers.base import dockerfile
from torchkiln.lock import baselock
from torchkiln.matrix.target import Base
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.lock.baselock import BaseLock

BASE = Base(id="toy", kind="dockerfile", python="3.11", glibc="2.36")
MODES = {"etc/shadow": 0o640, "etc/passwd": 0o644}
LABEL = "org.torchkiln.test=dockerfile"
TEXT = f"FROM scratch\nLABEL {LABEL}\nADD rootfs.tar /\nENV LANG=C\nCOPY motd /etc/\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """images/toy: a Dockerfile that needs no network and no other image."""
    place = tmp_path / "images" / "toy"
    place.mkdir(parents=True)
    write(place)
    return place


def write(place: Path, *, text: str = TEXT, files: Mapping[str, bytes | str] = FILES, motd: str = "hello\n") -> None:
    """Its three files."""
    (place / "Dockerfile").write_text(text)
    (place / "rootfs.tar").write_bytes(tar(files, MODES))
    (place / "motd").write_text(motd)


@pytest.fixture
def _clean() -> Iterator[None]:
    """Images that a test built are gone afterwards."""
    yield
    client = docker.from_env()
    for row in client.api.images(filters={"label": LABEL}, quiet=True):
        client.api.remove_image(row, force=True)
    client.close()


def lock(home: Home, folder: Path) -> BaseLock:
    """What `./inv lock --base` writes for it."""
    return dockerfile.lock(home, Store(home.store), BASE, folder, machine="x86_64")


def settle(home: Home, locked: BaseLock, folder: Path, *, frozen: bool = False) -> BaseLock:
    """What a build uses."""
    return dockerfile.settle(home, Store(home.store), BASE, locked, folder, machine="x86_64", frozen=frozen)


def test_a_folder_is_named_by_its_content(folder: Path) -> None:
    """Every byte, name, link and executable bit counts; times and other modes do not."""
    found = {dockerfile.source(folder)}
    os.utime(folder / "motd", (1, 1))
    (folder / "motd").chmod(0o600)
    assert dockerfile.source(folder) in found
    changes = (
        lambda: (folder / "motd").chmod(0o755),
        lambda: (folder / "motd").write_text("bye\n"),
        lambda: (folder / "link").symlink_to("motd"),
        (folder / "empty").mkdir,
        lambda: (folder / "motd").rename(folder / "empty" / "motd"),
    )
    for change in changes:
        change()
        found.add(dockerfile.source(folder))
    assert len(found) == 1 + len(changes)


def test_a_missing_dockerfile_is_named(tmp_path: Path) -> None:
    """Before the engine is asked."""
    with pytest.raises(BaseError, match="there is no Dockerfile") as raised:
        dockerfile.source(tmp_path)
    assert raised.value.where == str(tmp_path)


@pytest.mark.docker
@pytest.mark.usefixtures("_clean")
def test_layers_come_out_of_the_engine(home: Home, folder: Path) -> None:
    """The very tars that the engine made, compressed by us; the lock names them, the folder and the image."""
    locked = lock(home, folder)
    store = Store(home.store)
    client = docker.from_env()
    about = client.images.get(locked.config).attrs
    client.close()
    assert [layer.diff_id for layer in locked.layers] == about["RootFS"]["Layers"]
    for layer in locked.layers:
        data = gzip.decompress(store.read(layer.descriptor.digest))
        assert (digests.of_bytes(data), len(data)) == (layer.diff_id, layer.unpacked_size)
        assert layer.descriptor.media_type == LAYER_TYPE
    assert (locked.python, locked.source) == ("3.11.2", dockerfile.source(folder))
    assert not list(home.temporary.iterdir())


@pytest.mark.docker
@pytest.mark.usefixtures("_clean")
def test_what_is_locked_and_here_is_not_built_again(home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine is needed then; a cache folder that lost a layer needs it again."""
    locked = lock(home, folder)
    reachable = os.environ["DOCKER_HOST"]
    monkeypatch.setenv("DOCKER_HOST", f"unix://{home.root}/none.sock")
    assert settle(home, locked, folder, frozen=True) == locked
    Store(home.store).discard(locked.layers[0].descriptor.digest)
    with pytest.raises(EngineError, match="no Docker engine answers"):
        settle(home, locked, folder)
    monkeypatch.setenv("DOCKER_HOST", reachable)
    assert settle(home, locked, folder, frozen=True) == locked


@pytest.mark.docker
@pytest.mark.usefixtures("_clean")
def test_what_differs_from_the_lock_is_told_or_refused(
    home: Home, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed folder is built anew, with a warning at every use; --frozen refuses it before the engine is asked."""
    locked = lock(home, folder)
    write(folder, motd="changed\n")
    with pytest.raises(BaseError, match="has changed since it was locked"):
        settle(home, locked, folder, frozen=True)
    first = settle(home, locked, folder)
    assert first.layers[0].diff_id == locked.layers[0].diff_id
    assert first.layers[1].diff_id != locked.layers[1].diff_id
    assert "Docker built something else than the lock says: layer 1" in capsys.readouterr().err
    assert settle(home, locked, folder) == first
    said = capsys.readouterr().err
    assert "something else" in said
    assert "docker build" not in said


@pytest.mark.docker
@pytest.mark.usefixtures("_clean")
def test_a_build_that_came_out_otherwise_is_refused_under_frozen(home: Home, folder: Path) -> None:
    """The same folder can give other layers, and the lock then does not hold."""
    locked = lock(home, folder)
    other = lock(home, folder)
    forged = baselock.of_image(other.layers[:1], source=locked.source, config=locked.config, python=locked.version)
    Store(home.store).discard(forged.layers[0].descriptor.digest)
    with pytest.raises(BaseError, match=r"Docker built something else.*\+ layer 1"):
        settle(home, forged, folder, frozen=True)


@pytest.mark.docker
@pytest.mark.usefixtures("_clean")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM scratch\nCOPY nothing /\n", "nothing"),
        ("FROM scratch\nCOPY ../secret /\n", "secret"),
        ("NONSENSE\n", "NONSENSE"),
    ],
)
def test_a_dockerfile_that_fails_says_why(home: Home, folder: Path, text: str, said: str) -> None:
    """What the engine said is shown; nothing outside the folder can be copied."""
    (folder.parent / "secret").write_text("word")
    write(folder, text=text)
    with pytest.raises(EngineError, match="(?i)" + said) as raised:
        lock(home, folder)
    assert raised.value.where == "base toy"


@pytest.mark.docker
@pytest.mark.usefixtures("_clean")
def test_what_it_lacks_is_told(home: Home, folder: Path) -> None:
    """An image that can't be a base is refused as a pulled one is."""
    write(folder, files={name: data for name, data in FILES.items() if name != "usr/bin/tini"})
    with pytest.raises(BaseError, match="there is no /usr/bin/tini"):
        lock(home, folder)
