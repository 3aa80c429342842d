"""What a test may use: nothing, unless a marker asks for it and the machine has it.

TORCHKILN_REQUIRE=docker,sandbox,registry,network makes a missing one a failure instead of a skip.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.kiln import HOME, ROW, Kiln, Row
from torchkiln import home as homes
from torchkiln import rootfs
from torchkiln.engines import table
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.home import Home

NEEDS = ("network", "docker", "sandbox", "registry")


@cache
def lacking(need: str) -> str:
    """Why a test that needs this can't run here; empty if it can."""
    if need in ("docker", "sandbox"):
        nowhere = Store(Path("/nonexistent"))
        engines = table.engines(nowhere, partial(rootfs.tree, homes.Home(nowhere.root), nowhere))
        return next(engine.lacks() for engine in engines if engine.name == need)
    if need == "registry":
        return "" if os.environ.get("TORCHKILN_TEST_REGISTRY") else "TORCHKILN_TEST_REGISTRY=HOST:PORT names none"
    return "" if os.environ.get("TORCHKILN_OFFLINE", "") == "" else "TORCHKILN_OFFLINE is set"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`./inv test --golden` passes this."""
    parser.addoption("--golden", action="store_true", help="write golden files anew")


hypothesis.settings.register_profile("torchkiln", deadline=None, max_examples=60)  # no test asserts how long it takes
hypothesis.settings.load_profile("torchkiln")


def pytest_configure() -> None:
    """Whoever runs the tests in the background has them ignore Ctrl-C, and what they start would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine can't run, unless it was required."""
    required = {name for name in os.environ.get("TORCHKILN_REQUIRE", "").split(",") if name}
    unknown = required - set(NEEDS)
    if unknown:
        raise pytest.UsageError(f"TORCHKILN_REQUIRE names {', '.join(sorted(unknown))}; known: {', '.join(NEEDS)}")
    for item in items:
        asked = {need for need in NEEDS if item.get_closest_marker(need)}
        asked |= {"network", "sandbox"} & (set(NEEDS) if "built" in getattr(item, "fixturenames", ()) else set())
        for need in sorted(asked - required):
            if reason := lacking(need):
                item.add_marker(pytest.mark.skip(reason=f"{need}: {reason}"))


@pytest.fixture(autouse=True)
def _confined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test touches the user's cache; a unit test reaches no other machine."""
    monkeypatch.setenv("TORCHKILN_HOME", str(tmp_path / "home"))
    for name in ("TORCHKILN_FIND_LINKS", "SOURCE_DATE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    if request.node.get_closest_marker("network"):
        return
    connect = socket.socket.connect

    def only_loopback(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] not in {"127.0.0.1", "::1", "localhost"}:
            raise PermissionError(f"a unit test connected to {address}; mark it `network`")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", only_loopback)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A cache folder of the test's own."""
    return homes.prepare(homes.Home(tmp_path / "home"))


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Row:
    """The CPU row, built and validated in the sandbox."""
    kiln = Kiln(Path(HOME) if HOME else tmp_path_factory.mktemp("built") / "home")
    (entry,) = json.loads(kiln.run("build", "--target", ROW, "--engine", "sandbox", "--json"))
    return Row(kiln=kiln, entry=entry)
