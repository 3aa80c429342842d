"""A build serves a layer that was made before exactly where nothing that it is made from has changed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import assembling, toys
from tests.assembling import BASE, OTHER
from tests.kiln import ROOT
from torchkiln import assembly, plan, planning, specs
from torchkiln.errors import PlanError
from torchkiln.layers import suite
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.matrix import schema
from torchkiln.matrix.publishing import ANY, PublishTarget
from torchkiln.matrix.target import publishing
from torchkiln.specs import BytecodeSpec, EnvironmentSpec, Part, SuiteSpec, WheelSpec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.assembling import Row
    from torchkiln.home import Home
    from torchkiln.oci.image import Image
    from torchkiln.plan import ImagePlan
    from torchkiln.specs import LayerSpec

FAMILY = schema.load(ROOT / "matrix.yaml")
MADE = (WheelSpec, BytecodeSpec, EnvironmentSpec, SuiteSpec)
"""The kinds that assembly itself looks up; the base keeps its own account, and is tested with it."""


def of_disk(home: Home, root: Path, *wheels: Path, base: specs.BaseSpec = BASE) -> Row:
    """A row whose wheels lie in a folder."""
    environment = {"TORCHKILN_FIND_LINKS": str(wheels[0].parent)}
    return assembling.row(home, root, [toys.pin(path) for path in wheels], environment, base=base)


def assembled(row: Row, plan: ImagePlan | None = None) -> tuple[ImagePlan, Image]:
    """The image of a row, or of another plan with its lock."""
    return assembly.assemble(row.project, plan or row.plan, row.lock, frozen=False, stages={})


def poison(row: Row, layers: Iterable[LayerSpec]) -> str:
    """Let the cache have one and the same layer for all of these; its digest."""
    marker = write_layer(row.project.store, "old", [(Entry(path="old", kind="file", mode=0o644), b"old")])
    for spec in layers:
        if isinstance(spec, MADE):
            row.project.home.record(spec.key, marker.to_json())
    return marker.descriptor.digest


def served(row: Row, plan: ImagePlan, old: str) -> set[type[LayerSpec]]:
    """Kinds of layers that a build of a plan takes from the cache; it takes all of a kind, or none."""
    carried_out, image = assembled(row, plan)
    found = [
        (type(spec), layer.descriptor.digest == old)
        for spec, layer in zip(carried_out.layers, image.layers, strict=True)
    ]
    old_ones, new_ones = ({kind for kind, is_old in found if is_old is wanted} for wanted in (True, False))
    assert not old_ones & new_ones
    return old_ones


def edited(plan: ImagePlan, kind: type[LayerSpec], **changes: object) -> ImagePlan:
    """A plan with all layers of a kind made from something else."""
    return replace(
        plan,
        layers=tuple(replace(spec, **changes) if isinstance(spec, kind) else spec for spec in plan.layers),  # type: ignore[arg-type]
    )


@pytest.fixture
def row(home: Home, tmp_path: Path) -> Row:
    """A row of two wheels."""
    return of_disk(home, tmp_path, *(toys.make_wheel(tmp_path / "wheels", name) for name in ("one", "two")))


def test_what_has_not_changed_is_served(row: Row) -> None:
    """The control: whatever the cache calls a layer's, a build takes."""
    assert served(row, row.plan, poison(row, row.plan.layers)) == set(MADE)


@pytest.mark.parametrize("kind", MADE)
def test_a_new_format_serves_no_old_layer(row: Row, kind: type[LayerSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of that kind; the others stay."""
    old = poison(row, row.plan.layers)
    monkeypatch.setattr(kind, "FORMAT", kind.FORMAT + 1)
    assert served(row, row.plan, old) == set(MADE) - {kind}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (WheelSpec, {"part": Part(number=1, max_bytes=1 << 20)}),
        (BytecodeSpec, {"image": "sha256:" + "a" * 64}),
        (EnvironmentSpec, {"protected": ("one==1.0",)}),
        (EnvironmentSpec, {"interpreter": "/usr/local/bin/python3"}),
        (SuiteSpec, {"expectation": b'{"changed": true}'}),
    ],
)
def test_another_option_serves_no_old_layer(row: Row, kind: type[LayerSpec], changes: dict[str, object]) -> None:
    """Of the kind that has it; the others stay."""
    old = poison(row, row.plan.layers)
    assert served(row, edited(row.plan, kind, **changes), old) == set(MADE) - {kind}


def test_another_wheel_serves_no_old_layer(row: Row, home: Home, tmp_path: Path) -> None:
    """Of the same names and versions with other content: its files and bytecode are made anew."""
    old = poison(row, row.plan.layers)
    again = [
        toys.make_wheel(tmp_path / "more", name, files={f"{name}/__init__.py": "x = 1\n"}) for name in ("one", "two")
    ]
    other = of_disk(home, tmp_path, *again)
    assert served(other, other.plan, old) == {EnvironmentSpec, SuiteSpec}


def test_another_python_serves_no_old_bytecode(row: Row, home: Home, tmp_path: Path) -> None:
    """A patch release of the base's interpreter may compile otherwise; everything else stays."""
    older = of_disk(home, tmp_path, *sorted((tmp_path / "wheels").iterdir()), base=assembling.holding(OTHER))
    old = poison(older, older.plan.layers)
    assert served(row, row.plan, old) == set(MADE) - {BytecodeSpec}


def test_a_file_too_big_for_any_layer_ends_a_build_before_it_begins(home: Home, tmp_path: Path) -> None:
    """Wheels that are split are looked at first: no layer is made, of no wheel, and nothing is remembered."""
    one = toys.make_wheel(tmp_path / "wheels", "one", files={"one/big.so": b"\0" * 50_000}, stored=["one/big.so"])
    two = toys.make_wheel(tmp_path / "wheels", "two")
    row = of_disk(home, tmp_path, one, two)
    pins = {pin.name: pin for pin in row.lock.pins}
    split = tuple(WheelSpec(pins=(pins["one"],), part=Part(number=number, max_bytes=40_000)) for number in (1, 2, 3))
    base, *_, environment = row.plan.layers[:4]
    plan = replace(row.plan, layers=(base, *split, WheelSpec(pins=(pins["two"],)), environment), max_layer_bytes=40_000)
    before = set((home.store / "blobs" / "sha256").iterdir())
    planning.refuse_impossible(row.project, plan)  # the wheel is not here yet: nothing is known of its files
    with pytest.raises(PlanError, match=r"one/big\.so \(50\d+ bytes compressed\)") as raised:
        assembled(row, plan)
    assert "at most 40000 bytes" in raised.value.what
    with pytest.raises(PlanError) as told:  # by a plan, once the wheel is in the cache
        planning.refuse_impossible(row.project, plan)
    assert str(told.value) == str(raised.value)
    assert home.wheel(pins["one"].sha256, pins["one"].filename).write_bytes(b"damaged")
    planning.refuse_impossible(row.project, plan)
    assert set((home.store / "blobs" / "sha256").iterdir()) == before
    assert not [path for path in home.index.iterdir() if not path.name.startswith("base-")]


def test_an_image_keeps_to_the_limits_of_its_publish_target(home: Home, tmp_path: Path) -> None:
    """From the plan to the layers: every one is small enough, they are few enough, and together hold the same files."""
    noise = {f"one/{name}.bin": random.Random(name).randbytes(40_000) for name in "abcdef"}  # noqa: S311  incompressible
    big = toys.make_wheel(tmp_path / "wheels", "one", files={**noise, "one/__init__.py": "x = 1\n"})
    small = [toys.make_wheel(tmp_path / "wheels", f"small{number}") for number in range(9)]
    row = of_disk(home, tmp_path, big, *small)
    target = replace(FAMILY.targets[0], base=BASE.base)
    files = []
    for place in (ANY, PublishTarget(id="mine", max_layers=20, max_layer_bytes=100_000)):
        shipped = replace(suite.spec(row.project.suite), expectation=b"{}")
        planned = plan.plan(publishing(target, place), row.lock, BASE.lock, shipped, recipe=BASE.recipe)
        carried_out, image = assembled(row, planned)
        assert len(image.layers) <= place.max_layers
        assert all(layer.descriptor.size <= (place.max_layer_bytes or 1 << 30) for layer in image.layers)
        assert any(isinstance(spec, WheelSpec) and spec.part for spec in carried_out.layers) is (place is not ANY)
        contents = [toys.unpacked(row.project.store, layer) for layer in image.layers]
        files.append(
            sorted((name, data) for held in contents for name, (entry, data) in held.items() if entry.isfile())
        )
    assert files[0] == files[1]


def test_a_layer_larger_than_allowed_gets_into_no_image(row: Row) -> None:
    """Such as a base, or bytecode, whose size is known once it is made: the error names it, its size and the limit."""
    with pytest.raises(PlanError, match=r"a layer may have 100 bytes, and more have: .* bytes") as raised:
        assembled(row, replace(row.plan, max_layer_bytes=100))
    assert raised.value.where == "row"
    assembled(row, replace(row.plan, max_layer_bytes=1 << 20))
