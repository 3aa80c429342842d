"""What contestants are given: split contexts, a package and a base that changed, counted bytes."""

from __future__ import annotations

import gzip
import io
import socket
import tarfile
import threading
import zipfile
from typing import TYPE_CHECKING

import pytest

from bench import meter, patched, stage
from tests.toys import make_wheel, pin
from torchkiln.errors import HostError
from torchkiln.layers import wheel
from torchkiln.lock.lockfile import Pin
from torchkiln.oci import digest
from torchkiln.oci.image import LAYER_TYPE, Descriptor, Layer
from torchkiln.oci.store import Store
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from pathlib import Path


def weighing(name: str, size: int) -> Pin:
    """A pin of that size."""
    return Pin(name=name, version="1", sha256="0" * 64, filename=f"{name}-1-py3-none-any.whl", size=size)


def test_a_split_dockerfile_has_its_wheels_by_how_they_change() -> None:
    """NVIDIA's wheels lie in two halves of about one size, torch by itself, and small things last."""
    pins = [weighing("nvidia-a", 60), weighing("nvidia-b", 50), weighing("nvidia-c", 5), weighing("torch", 90)]
    found = stage.split([*pins, weighing("triton", 20), weighing("filelock", 1), weighing("numpy", 9)])
    assert {step: [one.name for one in wheels] for step, wheels in found.items()} == {
        "1": ["nvidia-a"],
        "2": ["nvidia-b", "nvidia-c"],
        "3": ["torch", "triton"],
        "4": ["numpy", "filelock"],
    }


def test_what_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    """The message says how much is needed and how much there is."""
    stage.need(tmp_path, 0)
    with pytest.raises(HostError, match=r"takes about 1000000 GB, and \d+ GB are free"):
        stage.need(tmp_path, 1e6)


def test_a_changed_package_is_a_good_wheel_of_a_later_version(tmp_path: Path) -> None:
    """It becomes a layer as any wheel does: name, version and RECORD agree."""
    old = make_wheel(tmp_path, "filelock", "3.1", {"filelock/__init__.py": "x = 1\n", "filelock/b.py": "y = 2\n"})
    new, path = patched.wheel(old, tmp_path / "new")
    assert (new.name, new.version, path.name) == ("filelock", "3.1.post1", "filelock-3.1.post1-py3-none-any.whl")
    assert new == pin(path)
    assert new.sha256 != pin(old).sha256
    with zipfile.ZipFile(path) as archive:
        assert b"\nVersion: 3.1.post1\n" in archive.read("filelock-3.1.post1.dist-info/METADATA")
        assert archive.read("filelock/b.py") == b"y = 2\n"
    layer = wheel.build(Store(tmp_path / "store"), WheelSpec(pins=(new,)), {new.sha256: path})
    assert not layer.empty


def test_an_updated_base_differs_in_one_file(tmp_path: Path) -> None:
    """The layer's digests are those of its blob and tar, and every other file is as it was."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, data in ((patched.FILE, b"library"), ("etc/os-release", b"Debian")):
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    blob = tmp_path / "old"
    blob.write_bytes(gzip.compress(written.getvalue()))
    descriptor = Descriptor(media_type=LAYER_TYPE, digest=digest.of_bytes(blob.read_bytes()), size=blob.stat().st_size)
    old = Layer(descriptor=descriptor, diff_id=digest.of_bytes(written.getvalue()), unpacked_size=10240, title="base")
    new = patched.base(old, blob, tmp_path / "new")
    data = (tmp_path / "new").read_bytes()
    tar = gzip.decompress(data)
    assert (new.descriptor.digest, new.descriptor.size) == (digest.of_bytes(data), len(data))
    assert (new.diff_id, new.unpacked_size) == (digest.of_bytes(tar), len(tar))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        files = {one.name.lstrip("./"): archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    assert files == {patched.FILE: b"librarx", "etc/os-release": b"Debian"}


def test_every_byte_on_the_way_is_counted() -> None:
    """Both directions, however they are cut into pieces."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                received = b""
                while piece := connection.recv(1000):
                    received += piece
                connection.sendall(received * 3)

        thread = threading.Thread(target=answer)
        thread.start()
        with meter.counted(f"127.0.0.1:{server.getsockname()[1]}") as way:
            host, port = way.address.split(":")
            with socket.create_connection((host, int(port))) as client:
                client.sendall(b"x" * 100_000)
                client.shutdown(socket.SHUT_WR)
                answered = b""
                while piece := client.recv(1 << 16):
                    answered += piece
            thread.join()
        assert len(answered) == 300_000
        assert way.bytes == 400_000
