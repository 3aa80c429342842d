"""Rows on bases that others made: built by the Docker engine, pushed to a registry, pulled, assembled, run."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import docker as sdk
import pytest

from tests.kiln import ROOT, ROW
from torchkiln import finished, pipeline, planning
from torchkiln import home as homes
from torchkiln.engines.docker import Docker
from torchkiln.layers import bytecode
from torchkiln.layers.base import table
from torchkiln.lock import baselock
from torchkiln.matrix import schema
from torchkiln.matrix.target import Base, select
from torchkiln.oci.image import Config, Image
from torchkiln.project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kiln import Row
    from torchkiln.matrix.target import Target

pytestmark = [pytest.mark.network, pytest.mark.sandbox, pytest.mark.docker, pytest.mark.registry]
NAME = f"torchkiln-test/base-{os.getpid()}"
CHECKS = ("static.*", "python.*", "torch.*", "toolchain.*", "cache.*", "lock.installed")


@dataclass(frozen=True, slots=True)
class Ground:
    """A checkout with an image of its own, and the row as it is on our base."""

    work: Project
    row: Target


@pytest.fixture(scope="module")
def ground(built: Row, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Our base in the Docker engine, and a Dockerfile that changes it; the engine is as before afterwards."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "images" / "locks", root / "images" / "locks")
    (root / "validate").symlink_to(ROOT / "validate")
    (root / "images" / "built").mkdir()
    (root / "images" / "built" / "Dockerfile").write_text(
        f"FROM {NAME}:plain\nENV EXTRA=1\nUSER root\nWORKDIR /srv\nRUN echo hello >/usr/share/hello && rm /etc/motd\n"
    )
    work = Project(root=root, home=homes.prepare(homes.Home(built.kiln.home)), environment=dict(os.environ))
    (row,) = select(schema.load(ROOT / "matrix.yaml").targets, [ROW])
    with finished.subject(work, row) as found:
        plain = Image(config=Config(env={"FROM_BELOW": "1"}), layers=found.image.layers[:1])
    Docker(work.store).load(plain, [f"{NAME}:plain"])
    try:
        yield Ground(work, row)
    finally:
        client = sdk.from_env()
        for image in client.images.list(NAME):
            client.images.remove(str(image.id), force=True)
        client.close()


def on(ground: Ground, base: Base) -> Target:
    """The row on another base, locked."""
    row = replace(ground.row, base=base)
    lock = table.lock(ground.work, row)
    (ground.work.locks / base.lock_name).write_text(baselock.render(lock))
    return row


def holds(ground: Ground, row: Target, *, run: bool) -> None:
    """It builds to the same digest twice, and every check that is asked holds, in Docker if it is to `run`."""
    try:
        made = pipeline.build(ground.work, row, None)
        assert pipeline.build(ground.work, row, None, pipeline.Wishes(frozen=True)).digest == made.digest
        assert finished.verify(ground.work, row) == ()
        assert set(made.image.config.env) == set(made.plan.config.env)
        with finished.subject(ground.work, row) as subject:
            engine = pipeline.engine(ground.work, "docker", subject) if run else None
            report = pipeline.validate(ground.work, row, subject, engine, checks=CHECKS)
        asked = {check.id: check for check in report.checks if check.status != "not-run"}
        assert {"static.arch", *({"torch.import", "toolchain.extension"} if run else ())} <= asked.keys()
        assert {name: check.reason for name, check in asked.items() if check.status != "pass"} == {}
        layers = made.image.layers[: len(planning.locked(ground.work, row)[1].layers) + 1]
        start = bytecode.interpreter(ground.work.home, ground.work.store, layers, "3.11.2")
        assert start.asked().startswith("3.11.")
        assert start.version == ""
        assert all(str(ground.work.home.rootfs / "stacks") in start.command[place] for place in (0, -1))
    finally:
        ground.work.store.untag(row.id)


def test_a_row_on_what_docker_built(ground: Ground) -> None:
    """images/built/Dockerfile, exported as layers: nothing but the layers is kept of it."""
    base = Base(id="built", kind="dockerfile", python="3.11", glibc="2.36")
    holds(ground, on(ground, base), run=False)


def test_a_row_on_what_a_registry_serves(ground: Ground, tmp_path: Path) -> None:
    """A Debian with Python that Docker built, pushed to a registry and named by its digest."""
    host = os.environ["TORCHKILN_TEST_REGISTRY"]
    client = sdk.from_env()
    client.images.build(path=str(ground.work.root / "images" / "built"), tag=f"{NAME}:derived", rm=True)
    client.close()
    options = ["--quiet", "--dest-tls-verify=false", "--digestfile", str(tmp_path / "digest")]
    daemon = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    source = ["--src-daemon-host", daemon, f"docker-daemon:{NAME}:derived"]
    subprocess.run(["skopeo", "copy", *options, *source, f"docker://{host}/{NAME}:1"], check=True)
    digest = (tmp_path / "digest").read_text()
    base = Base(id="pulled", kind="registry", python="3.11", glibc="2.36", image=f"{host}/{NAME}@{digest}")
    holds(ground, on(ground, base), run=True)
