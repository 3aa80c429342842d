"""What layers weigh before they are made, and which rows share them."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_plan import BASE, PINS, SUITE, TARGET, lock, pin
from torchkiln import plan, sharing
from torchkiln.errors import LockError
from torchkiln.matrix.publishing import PublishTarget
from torchkiln.matrix.target import Gpu
from torchkiln.sharing import Weight
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from torchkiln.plan import ImagePlan

A100 = replace(TARGET, gpu=Gpu(id="a100", arch="sm_80"))
NEWER = replace(TARGET, release=replace(TARGET.release, id="torch26", torch="2.6.0"))
OTHER = tuple(pin("torch", 70, "2.6.0") if one.name == "torch" else one for one in PINS)


def planned() -> tuple[ImagePlan, ...]:
    """Two rows of one lock, and one with another torch."""
    return tuple(
        plan.plan(target, lock(*pins), BASE, replace(SUITE, expectation=target.id.encode()))
        for target, pins in ((TARGET, PINS), (A100, PINS), (NEWER, OTHER))
    )


def key(title: str) -> str:
    """Of a layer of the rows."""
    return next(spec.key for one in planned() for spec in one.layers if spec.title == title)


def test_a_layer_that_was_made_weighs_what_it_became() -> None:
    """Else wheels are estimated by their files, and of the rest nothing is known."""
    found = sharing.family(planned(), {key("torch 2.5.1+cu124"): 101, key("environment"): 7})
    weights = {layer.spec.title: layer.weight for layer in found.layers_of(TARGET.id)}
    assert weights["torch 2.5.1+cu124"] == Weight(bytes=101)
    assert weights["environment"] == Weight(bytes=7)
    assert weights["triton 1"] == Weight(bytes=50, estimated=1)
    assert weights["base bookworm"] == weights["bytecode of triton 1"] == Weight(unknown=1)


def test_an_engine_fetches_a_layer_for_each_stack_below_it() -> None:
    """Rows share unpacked what lies below their first difference: above another torch, triton is another layer."""
    found = sharing.family(planned(), {key("triton 1"): 100, key("torch 2.5.1+cu124"): 1000, key("torch 2.6.0"): 2000})
    both, one = found.unpacked, found.only([TARGET.id, A100.id]).unpacked
    assert one.bytes == found.only([TARGET.id]).total_of(TARGET.id).bytes
    assert both.bytes == one.bytes + 2000 + 100 + 1  # torch, triton and filelock again; NVIDIA's lie below


def test_parts_of_a_wheel_weigh_together_what_it_weighs() -> None:
    """However many are planned."""
    target = replace(TARGET, publish_target=PublishTarget(id="small", max_layer_bytes=1_000_000))
    pins = (pin("torch", 2_500_000, "2.5.1"), pin("filelock", 9))
    planned = plan.plan(target, lock(*pins), BASE, SUITE)
    parts = [spec for spec in planned.layers if isinstance(spec, WheelSpec) and spec.part]
    assert len(parts) > 3
    weights = [sharing.weight(spec, None).bytes for spec in parts]
    assert weights == [1_000_000, 1_000_000, 500_000] + [0] * (len(parts) - 3)


def test_layers_know_the_rows_that_have_them() -> None:
    """Rows of one lock share all but what names the row; another torch leaves the rest shared."""
    found = sharing.family(planned(), {})
    rows = {layer.spec.title: layer.rows for layer in found.layers.values()}
    assert rows["torch 2.5.1+cu124"] == (TARGET.id, A100.id)
    assert rows["torch 2.6.0"] == (NEWER.id,)
    assert rows["base bookworm"] == rows["triton 1"] == (TARGET.id, A100.id, NEWER.id)
    assert len([layer for layer in found.layers.values() if layer.spec.title == "validation suite"]) == 3


def test_what_the_family_weighs() -> None:
    """Per row all and its own; in all the sum, and each layer once."""
    made = {spec.key: 1000 if spec.title.startswith("base") else 10 for one in planned() for spec in one.layers}
    found = sharing.family(planned(), made)
    layers = len(planned()[0].layers)
    whole = 1000 + 10 * (layers - 1)
    assert found.total_of(TARGET.id) == Weight(bytes=whole)
    assert found.own_of(TARGET.id) == Weight(bytes=10)  # the suite's expectation names the row
    assert found.own_of(NEWER.id) == Weight(bytes=40)  # torch, its bytecode, what is protected, the suite
    assert found.summed == Weight(bytes=3 * whole)
    assert found.unique == Weight(bytes=sum(made.values()))
    assert found.ratio == 3 * whole / sum(made.values())
    unmade = sharing.family(planned(), {})
    assert unmade.total_of(TARGET.id) == Weight(bytes=159, estimated=4, unknown=6)
    assert unmade.unique == Weight(bytes=159 + 70, estimated=5, unknown=1 + 2 + 2 + 2 + 3)


def test_json_has_every_row_and_every_size() -> None:
    """What programs read: sizes and what they are worth, whole lists of rows, what was left out and its remedy."""
    found = sharing.family(planned(), {key("environment"): 7}, {"torch25-cu118": LockError("no lock", remedy="./inv")})
    document = sharing.plan_json(found, A100.id)
    assert document["target"] == A100.id
    assert document["config"]["user"] == "1000:0"
    layers = {layer["title"]: layer for layer in document["layers"]}
    base, torch, own = layers["base bookworm"], layers["torch 2.5.1+cu124"], layers["validation suite"]
    assert (base["size"], base["size_is"], base["shared_with"]) == (None, "unknown", [TARGET.id, NEWER.id])
    assert (torch["size"], torch["size_is"], torch["shared_with"]) == (99, "estimate", [TARGET.id])
    assert (layers["environment"]["size"], layers["environment"]["size_is"]) == (7, "exact")
    assert own["shared_with"] == []
    summed = sharing.to_json_of(found)
    assert [row["target"] for row in summed["rows"]] == [TARGET.id, A100.id, NEWER.id]
    assert summed["total"]["bytes"] > summed["unique"]["bytes"] > 0
    assert summed["left_out"] == [{"target": "torch25-cu118", "reason": "no lock", "remedy": "./inv"}]


FAMILY = (
    "torch25-cu124", "torch25-cu124-a100", "torch25-cu124-rtx4090", "torch25-cu124-rtx4090d", "torch25-cu118",
    "torch26-cu124", "torch26-cu124-a100-devel", "torch26-cpu",
)  # fmt: skip


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (FAMILY, ("*",)),
        (FAMILY[:5], ("torch25-*",)),
        (FAMILY[:4], ("torch25-cu124*",)),
        (FAMILY[:1], ("torch25-cu124",)),
        (FAMILY[2:4], ("torch25-cu124-rtx4090*",)),
        (FAMILY[2:3], ("torch25-cu124-rtx4090",)),
        (FAMILY[3:6], ("torch25-cu124-rtx4090d", "torch25-cu118", "torch26-cu124")),
        ((), ()),
    ],
)
def test_rows_are_told_in_few_globs(names: tuple[str, ...], told: tuple[str, ...]) -> None:
    """The widest glob that is true, else the id."""
    assert sharing.covering(names, FAMILY) == told


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (FAMILY, ("*",)),
        (FAMILY[:5], ("torch25-*",)),
        (FAMILY[:4], ("torch25-cu124*",)),
        (FAMILY[1:4], ("torch25-cu124* (3 of 4)",)),
        (FAMILY[3:6], ("torch25-cu124-rtx4090d", "torch25-cu118", "torch26-cu124")),
        ((), ()),
    ],
)
def test_rows_are_told_by_group(names: tuple[str, ...], told: tuple[str, ...]) -> None:
    """Most of an accelerator's rows are told as that, and not one by one."""
    assert sharing.grouped(names, FAMILY) == told


@given(st.sets(st.sampled_from(FAMILY)))
def test_globs_name_these_rows_and_no_other(names: set[str]) -> None:
    """What is told can be given to --target."""
    told = sharing.covering(names, FAMILY)
    assert {name for name in FAMILY if any(fnmatchcase(name, glob) for glob in told)} == names


def test_a_wheel_of_unknown_size_makes_its_layer_unknown() -> None:
    """A sum that left it out in silence would be far off."""
    unsized = replace(pin("torch"), size=None)
    assert sharing.weight(WheelSpec(pins=(PINS[0], unsized)), None) == Weight(unknown=1)
    assert sharing.weight(WheelSpec(pins=(PINS[0], unsized)), 5) == Weight(bytes=5)
