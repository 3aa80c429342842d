from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import toys
from torchkiln import assembly
from torchkiln.errors import LockError
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.lock import baselock, lockfile
from torchkiln.lock.lockfile import Inputs
from torchkiln.matrix.target import Base
from torchkiln.oci.image import Config
from torchkiln.oci.store import Store
from torchkiln.plan import ImagePlan
from torchkiln.project import Project
from torchkiln.specs import BaseSpec, BytecodeSpec, WheelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchkiln.home import Home

BASE = BaseSpec(
    base=Base(id="bookworm", kind="debian", suite="bookworm", python="3.11", glibc="2.36", packages=("python3",)),
    lock=baselock.make([("libpython3.11-minimal", "3.11.2-6")]),
)


def wheels(home: Home, root: Path, *paths: Path, base: BaseSpec = BASE) -> Mapping[str, Path]:
    """What a build does with these wheels before it makes layers of them."""
    pins = [toys.pin(path) for path in paths]
    lock = lockfile.make(Inputs(requirements=("one",), python="3.11", platform="x86_64 glibc 2.36"), pins, "uv")
    spec = WheelSpec(pins=lock.pins)
    plan = ImagePlan(target="row", layers=(base, spec), config=Config())
    project = Project(root=root, home=home, environment={"TORCHKILN_FIND_LINKS": str(root)})
    return assembly._wheels(project, plan, lock, {}, [spec])


def test_a_layer_that_holds_nothing_is_left_out(tmp_path: Path) -> None:
    """A wheel of type stubs has no module to compile: its bytecode is no layer, and the plan says so too."""
    store = Store(tmp_path)
    pin = lockfile.Pin(name="types-toy", version="1", sha256="0" * 64, filename="types_toy-1-py3-none-any.whl", size=9)
    plan = ImagePlan(
        target="row",
        layers=(BASE, WheelSpec(pins=(pin,)), BytecodeSpec(pins=(pin,), python="3.11.2")),
        config=Config(),
    )
    full = [
        write_layer(store, name, [(Entry(path=name, kind="directory", mode=0o755), None)]) for name in ("base", "wheel")
    ]
    kept, image = assembly.put_together(plan, [*full, write_layer(store, "bytecode", [])])
    assert [layer.title for layer in image.layers] == ["base", "wheel"]
    assert kept.layers == plan.layers[:2]


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


def test_wheels_that_go_together_on_one_python_are_asked_again_on_another(home: Home, tmp_path: Path) -> None:
    """Rows share a lock for each minor; bases have their own patch release, and markers may name it."""
    one = toys.make_wheel(tmp_path, "one", requires=("two; python_full_version >= '3.11.4'",))
    wheels(home, tmp_path, one)
    newer = replace(BASE, lock=baselock.make([("libpython3.11-minimal", "3.11.9-1")]))
    with pytest.raises(LockError, match="no two is pinned"):
        wheels(home, tmp_path, one, base=newer)
