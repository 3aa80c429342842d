"""A real image to sabotage: one that `./inv build` has left in a cache folder, named by TORCHKILN_BUILT."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchkiln import home as homes
from torchkiln import pipeline, rootfs
from torchkiln.engines.sandbox import Sandbox
from torchkiln.oci import load
from torchkiln.validation import expectation

if TYPE_CHECKING:
    from torchkiln.engines import Engine
    from torchkiln.home import Home
    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.target import Target
    from torchkiln.oci.image import Image

ROOT = Path(__file__).parents[2]
BUILT = os.environ.get("TORCHKILN_BUILT", "")
"""Read before any test changes the environment."""


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
def built_image() -> BuiltImage:
    """The CPU row if it is there, else any row: its checks on the CPU are the same."""
    if not BUILT:
        pytest.skip("TORCHKILN_BUILT names no cache folder with a built image")
    work = pipeline.Project(root=ROOT, home=homes.prepare(homes.Home(Path(BUILT).absolute())), environment={})
    rows = [row for row in pipeline.targets(work) if row.id in work.store.refs()]
    target = min(rows, key=lambda row: row.accelerator.kind != "cpu")
    read = load.layout(f"oci:{work.home.store}:{target.id}")
    engine = Sandbox(functools.partial(rootfs.tree, work.home, work.store))
    return BuiltImage(
        engine=engine, image=read.image, target=target, lock=pipeline.locked(work, target)[0], home=work.home
    )
