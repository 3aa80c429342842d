"""A toy image of static busybox: small, real, and started by both engines."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchkiln import rootfs
from torchkiln.engines import table
from torchkiln.engines.sandbox import Sandbox
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.oci.image import Config, Image
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from torchkiln.engines import Engine
    from torchkiln.home import Home

PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
GROUP = b"root:x:0:\napp:x:1000:\nvideo:x:44:app\n"


@pytest.fixture(scope="session")
def busybox() -> bytes:
    """The program that is the toy's whole userland."""
    path = Path("/bin/busybox")
    if not path.exists():
        if os.environ.get("TORCHKILN_REQUIRE"):
            pytest.fail("busybox is missing: apt-get install busybox-static")
        pytest.skip("busybox is missing: apt-get install busybox-static")
    return path.read_bytes()


@pytest.fixture
def store(home: Home) -> Store:
    """The store of the test's own home."""
    return Store(home.store)


@pytest.fixture
def toy(store: Store, busybox: bytes) -> Image:
    """Two layers: programs, and accounts; runs as 1000:0."""
    applets = subprocess.run(["/bin/busybox", "--list"], capture_output=True, check=True).stdout.decode().split()
    programs = [
        (Entry(path="bin/busybox", kind="file", mode=0o755), busybox),
        *(
            (Entry(path=f"bin/{name}", kind="symlink", mode=0o777, target="busybox"), None)
            for name in applets
            if name != "busybox"
        ),
    ]
    accounts = [
        (Entry(path="etc/group", kind="file", mode=0o644), GROUP),
        (Entry(path="etc/passwd", kind="file", mode=0o644), PASSWD),
        (Entry(path="tmp", kind="directory", mode=0o1777), None),
    ]
    layers = (write_layer(store, "programs", programs), write_layer(store, "accounts", accounts))
    config = Config(env={"PATH": "/bin", "COLOUR": "green"}, command=("sh", "-c", "echo default"), user="1000:0")
    return Image(config=config, layers=layers)


@pytest.fixture
def sandbox(home: Home, store: Store) -> Sandbox:
    """The sandbox over this test's home."""
    return Sandbox(partial(rootfs.tree, home, store))


@pytest.fixture
def engine(request: pytest.FixtureRequest, home: Home, store: Store) -> Engine:
    """An engine by name, for tests of what all engines promise."""
    return table.pick(request.param, store, partial(rootfs.tree, home, store))
