"""A real image to sabotage: the small row, as it was built."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT, ROW
from torchkiln import home as homes
from torchkiln import pipeline, rootfs
from torchkiln.engines.sandbox import Sandbox
from torchkiln.matrix import schema
from torchkiln.matrix.target import select
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
    with pipeline.subject(work, target) as read:
        image = read.image
    engine = Sandbox(functools.partial(rootfs.tree, work.home, work.store))
    return BuiltImage(engine=engine, image=image, target=target, lock=pipeline.locked(work, target)[0], home=work.home)
