from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import toys
from torchkiln import assembly
from torchkiln.errors import LockError
from torchkiln.lock import baselock, lockfile
from torchkiln.lock.lockfile import Inputs
from torchkiln.matrix.target import Base
from torchkiln.oci.image import Config
from torchkiln.plan import BaseSpec, ImagePlan, WheelSpec
from torchkiln.project import Project

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchkiln.home import Home

BASE = BaseSpec(
    base=Base(id="bookworm", kind="debian", suite="bookworm", python="3.11", glibc="2.36", packages=("python3",)),
    lock=baselock.make([("libpython3.11-minimal", "3.11.2-6")]),
)


def wheels(home: Home, root: Path, *paths: Path) -> Mapping[str, Path]:
    """What a build does with these wheels before it makes layers of them."""
    pins = [toys.pin(path) for path in paths]
    lock = lockfile.make(Inputs(requirements=("one",), python="3.11", platform="x86_64 glibc 2.36"), pins, "uv")
    spec = WheelSpec(pins=lock.pins)
    plan = ImagePlan(target="row", layers=(BASE, spec), config=Config())
    project = Project(root=root, home=home, environment={"TORCHKILN_FIND_LINKS": str(root)})
    return assembly._wheels(project, plan, lock, {}, [spec])


def test_a_pin_deleted_from_a_lock_is_noticed_before_layers_are_made(home: Home, tmp_path: Path) -> None:
    """What the wheels themselves ask for is held against the pins, for the base's exact Python."""
    one = toys.make_wheel(tmp_path, "one", requires=("two>=1; python_full_version == '3.11.2'", "six; extra == 'x'"))
    two = toys.make_wheel(tmp_path, "two")
    assert len(wheels(home, tmp_path, one, two)) == 2
    for _ in range(2):  # a lock that was refused is not remembered as a good one
        with pytest.raises(LockError) as raised:
            wheels(home, tmp_path, one)
        assert "one needs two>=1, and no two is pinned" in raised.value.what
        assert raised.value.remedy == "./inv lock --target row"
