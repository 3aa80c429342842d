"""A real image to sabotage: the small row, as it was built."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT, ROW
from torchkiln import fetch, finished, planning, rootfs, specs
from torchkiln import home as homes
from torchkiln.engines.sandbox import Sandbox
from torchkiln.layers import toolkit, wheel
from torchkiln.lock import lockfile
from torchkiln.matrix import schema
from torchkiln.matrix.target import select
from torchkiln.oci.image import append
from torchkiln.oci.store import Store
from torchkiln.project import Project
from torchkiln.validation import expectation

if TYPE_CHECKING:
    from tests.kiln import Row
    from torchkiln.engines import Engine
    from torchkiln.home import Home
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.target import Target
    from torchkiln.oci.image import Image


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image, its row, and an engine that runs it."""

    engine: Engine
    image: Image
    target: Target
    lock: Lock
    home: Home

    @property
    def expectation(self) -> bytes:
        """What the suite is given."""
        return expectation(self.target, self.lock)


@pytest.fixture(scope="session")
def built_image(built: Row) -> BuiltImage:
    """The small row as it was built, and an engine that runs it."""
    work = Project(root=ROOT, home=homes.prepare(homes.Home(built.kiln.home)), environment={})
    (target,) = select(schema.load(ROOT / "matrix.yaml").targets, [ROW])
    with finished.subject(work, target) as read:
        image = read.image
    engine = Sandbox(functools.partial(rootfs.tree, work.home, work.store))
    return BuiltImage(engine=engine, image=image, target=target, lock=planning.locked(work, target)[0], home=work.home)


@pytest.fixture(scope="session")
def devel_image(built_image: BuiltImage) -> BuiltImage:
    """The small row with a CUDA compiler on top, by the same layers as in a devel row: 100 MB instead of 3 GB."""
    home, store = built_image.home, Store(built_image.home.store)
    lock = lockfile.parse(Path(__file__).with_name("toolkit.txt").read_text())
    paths = fetch.fetch(home, lock, environment=os.environ)
    layers = [
        wheel.build(store, specs.WheelSpec(pins=lock.pins), paths),
        toolkit.build(store, specs.ToolkitSpec(pins=lock.pins, archs="9.0"), paths),
    ]
    config = built_image.image.config
    env = {**config.env, "PATH": f"/opt/cuda/bin:{config.env['PATH']}", "CUDA_HOME": "/opt/cuda"}
    env["TORCH_CUDA_ARCH_LIST"] = "8.0 9.0"
    image = append(replace(built_image.image, config=replace(config, env=env)), layers)
    return replace(built_image, image=image)


def devel_expectation(image: BuiltImage) -> bytes:
    """What the small row promises, as if it were a devel row of CUDA 13.0."""
    row = json.loads(image.expectation)
    return json.dumps(
        {**row, "kind": "cuda", "flavour": "devel", "toolkit": "13.0", "archs": ["sm_80", "sm_90"]}
    ).encode()
