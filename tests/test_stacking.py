"""Which wheels share a layer, and in which order layers lie."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kiln import ROOT
from torchkiln import plan, sharing, stacking
from torchkiln.errors import PlanError
from torchkiln.lock import baselock, rows
from torchkiln.lock.lockfile import Pin
from torchkiln.matrix import schema
from torchkiln.matrix.publishing import ANY, PublishTarget
from torchkiln.matrix.target import publishing
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, Descriptor, Layer
from torchkiln.specs import BytecodeSpec, EnvironmentSpec, SuiteSpec, WheelSpec

if TYPE_CHECKING:
    import random

    from torchkiln.plan import ImagePlan

FAMILY = {row.id: row for row in schema.load(ROOT / "matrix.yaml").targets}
SUITE = SuiteSpec(files=(), expectation=b"{}")


def pin(name: str, size: int | None = 1) -> Pin:
    """A wheel that exists on paper."""
    sha256 = hashlib.sha256(name.encode()).hexdigest()
    return Pin(name=name, version="1", sha256=sha256, filename=f"{name}-1-py3-none-any.whl", size=size)


def planned(row: str, place: PublishTarget = ANY) -> ImagePlan:
    """A committed row over a base that is the same for all, as it is made for a publish target."""
    target = publishing(FAMILY[row], place)
    base = baselock.make([("libpython3-minimal", f"{target.base.python}.0-1")])
    return plan.plan(target, rows.read(ROOT / "images" / "locks", target), base, SUITE)


def shared(one: str, other: str) -> float:
    """GB of wheels in the layers that an engine unpacks once for two rows: those with the same layers below them."""
    pairs = zip(planned(one).layers, planned(other).layers, strict=False)
    same = [mine for mine, _ in takewhile(lambda pair: pair[0].key == pair[1].key, pairs)]
    return sum(pin.weight for spec in same if isinstance(spec, WheelSpec) for pin in spec.pins) / 1e9


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("torch25-cu124", "torch26-cu124", 1.88),
        ("torch26-cu126-noble", "torch27-cu126-noble", 1.65),
        ("torch27-cu126", "torch28-cu126", 1.08),
        ("torch213-cu130", "torch214-cu130", 1.25),
    ],
)
def test_releases_with_one_cuda_share_most_of_nvidias_wheels_unpacked(one: str, other: str, expected: float) -> None:
    """As much as the docstring of `groups` says, of the rows that are locked."""
    assert shared(one, other) == pytest.approx(expected, abs=0.01)


def test_the_family_is_unpacked_with_little_more_than_it_holds() -> None:
    """Of rows whose wheels' sizes are known: 83.5 GB of wheels for 79.0 GB of different ones, in 200 GB of images."""
    known = [one for one in FAMILY if rows.state(ROOT / "images" / "locks", FAMILY[one]) == "locked"]
    plans: defaultdict[str, list[ImagePlan]] = defaultdict(list)
    for row in known:
        made = planned(row)
        if all(pin.size for spec in made.layers if isinstance(spec, WheelSpec) for pin in spec.pins):
            plans[FAMILY[row].base.name].append(made)
    families = [sharing.family(made, {}) for made in plans.values()]
    assert sum(one.unpacked.bytes for one in families) < 1.07 * sum(one.unique.bytes for one in families)
    assert sum(one.summed.bytes for one in families) > 2 * sum(one.unpacked.bytes for one in families)


def test_rows_of_one_lock_differ_in_the_suite_alone() -> None:
    """What a GPU's row is held against lies on top of everything; all below is unpacked once for all of them."""
    plain, gpu = planned("torch25-cu124"), planned("torch25-cu124-a100")
    assert plain.layers[:-1] == gpu.layers[:-1]
    assert [type(spec) for spec in plain.layers[-2:]] == [EnvironmentSpec, SuiteSpec]


def test_a_small_wheel_of_another_version_leaves_all_that_is_large_below_it() -> None:
    """By size a node fetches 14 MB anew on average, and what is remade is that wheel and its bytecode, nothing else."""
    target = FAMILY["torch25-cu124"]
    lock = rows.read(ROOT / "images" / "locks", target)
    base = baselock.make([("libpython3.11-minimal", "3.11.2-1")])
    before = plan.plan(target, lock, base, SUITE).layers
    small = [one for one in lock.pins if one.name not in stacking.TORCH and stacking.has_modules(one)]
    above = []
    for changed in small:
        newer = replace(changed, sha256=changed.sha256[::-1])
        pins = tuple(newer if one is changed else one for one in lock.pins)
        after = plan.plan(target, replace(lock, pins=pins), base, SUITE).layers
        differing = [spec for spec, old in zip(after, before, strict=True) if spec != old]
        assert [type(spec) for spec in differing] == [WheelSpec, BytecodeSpec]
        fetched = after[after.index(differing[0]) :]
        above.append(sum(pin.weight for spec in fetched if isinstance(spec, WheelSpec) for pin in spec.pins))
    assert sum(above) / len(above) < 10e6  # of wheels; bytecode is the rest
    assert max(above) < 50e6


@pytest.mark.parametrize(
    ("count", "max_bytes"), [(120, None), (40, None), (10, None), (120, 10**9), (60, 300_000_000), (20, 10**10)]
)
@pytest.mark.parametrize("row", ["torch25-cu124", "torch213-cu130-devel"])
def test_a_row_keeps_to_what_its_publish_target_takes(row: str, count: int, max_bytes: int | None) -> None:
    """Layers are as many as allowed at most, and every wheel is in one layer, or in all parts of itself."""
    made = planned(row, PublishTarget(id="mine", max_layers=count, max_layer_bytes=max_bytes))
    assert len(made.layers) <= count
    wheels = [spec for spec in made.layers if isinstance(spec, WheelSpec)]
    firsts = [one for spec in wheels if spec.part is None or spec.part.number == 1 for one in spec.pins]
    assert sorted(firsts, key=lambda one: one.name) == list(rows.read(ROOT / "images" / "locks", FAMILY[row]).pins)
    assert len({spec.key for spec in made.layers}) == len(made.layers)
    assert any(spec.part for spec in wheels) is (max_bytes == 300_000_000)


def test_layers_that_are_too_small_are_refused_with_the_least_that_would_do() -> None:
    """By the wheel that takes most of them, and where the limit is stated; the number told is enough."""
    with pytest.raises(
        PlanError, match=r"torch 2\.13\.0\S* alone may take [\d,]+ layers of at most 1,000 bytes"
    ) as raised:
        planned("torch213-cpu", PublishTarget(id="tiny", max_layer_bytes=1000))
    assert "torch213-cpu has room for 80 layers" in raised.value.what
    assert raised.value.where == "matrix.yaml: publish_targets.tiny.max_layer_bytes"
    enough = int(re.findall(r"max_layer_bytes of at least ([\d,]+)", raised.value.remedy)[0].replace(",", ""))
    assert "by the sizes of wheels, which are all that is known before" in raised.value.remedy
    planned("torch213-cpu", PublishTarget(id="tiny", max_layer_bytes=enough))
    with pytest.raises(PlanError):
        planned("torch213-cpu", PublishTarget(id="tiny", max_layer_bytes=enough * 8 // 10))


def test_too_few_layers_are_refused_with_what_each_is_for() -> None:
    """Where the limit is stated, and how many the row takes at least: that many are enough, and one less is not."""
    with pytest.raises(PlanError, match="needs room for 10 layers at least, and may have 5: 1 of its base, ") as raised:
        planned("torch213-cpu", PublishTarget(id="few", max_layers=5))
    kept = "4 are kept for additions, so that one changes no layer, whether the row has any or not"
    assert raised.value.what.endswith(f"2 for wheels and their bytecode, and {kept}")
    assert raised.value.where == "matrix.yaml: publish_targets.few.max_layers"
    assert raised.value.remedy == "max_layers of 10"
    planned("torch213-cpu", PublishTarget(id="few", max_layers=10))
    with pytest.raises(PlanError):
        planned("torch213-cpu", PublishTarget(id="few", max_layers=9))


def test_limits_that_leave_no_room_are_refused_together() -> None:
    """Few layers, and each of few bytes: what would do of either is told, with the other as it is."""
    place = PublishTarget(id="mine", max_layers=20, max_layer_bytes=300_000_000)
    with pytest.raises(
        PlanError, match="layers of at most 300,000,000 bytes, and torch25-cu124 has room for"
    ) as raised:
        planned("torch25-cu124", place)
    (more,) = re.findall(r"or max_layers of (\d+)", raised.value.remedy)
    planned("torch25-cu124", replace(place, max_layers=int(more)))
    with pytest.raises(PlanError):
        planned("torch25-cu124", replace(place, max_layers=int(more) - 1))


def test_publish_targets_of_this_repository_change_no_layer() -> None:
    """Their limits are far from what a wheel has, even one of which nobody states the size."""
    for place in schema.load(ROOT / "matrix.yaml").publish_targets.values():
        for row in ("torch25-cu124", "torch28-cu126-noble"):
            assert planned(row, place).layers == planned(row).layers


def test_a_base_whose_layers_are_too_large_is_refused_by_the_plan() -> None:
    """Those of an image that others made are known beforehand: each is named with its size and the limit."""
    target = publishing(FAMILY["torch213-cpu"], PublishTarget(id="mine", max_layer_bytes=10**9))
    target = replace(target, base=replace(target.base, kind="registry"))
    digest = digests.of_bytes(b"theirs")
    blob = Descriptor(media_type=LAYER_TYPE, digest=digest, size=10**9 + 1)
    theirs = Layer(descriptor=blob, diff_id=digest, unpacked_size=10**10)
    base = baselock.of_image([theirs], source="x", config="y", python="3.11.2")
    with pytest.raises(PlanError, match=f"{digest} \\(1000000001 bytes\\)") as raised:
        plan.plan(target, rows.read(ROOT / "images" / "locks", FAMILY["torch213-cpu"]), base, SUITE)
    assert "a layer may have 1000000000 bytes" in raised.value.what
    assert raised.value.where == "torch213-cpu"


def test_nvidias_own_order() -> None:
    """What belongs to a CUDA, then what PyTorch replaces in between; torch, what goes with it, the rest by size."""
    names = ["nvidia-nccl-cu12", "nvidia-cusparselt-cu12", "nvidia-curand-cu12", "nvidia-cublas-cu12", "cuda-toolkit"]
    names += ["nvidia-cudnn-cu12", "nvidia-nvshmem-cu13", "nvidia-cufile-cu12"]
    pins = [pin(name) for name in names]
    pins += [pin("filelock", 5), pin("torch", 900), pin("triton", 200), pin("torchvision", 7), pin("numpy", 17)]
    grouped = stacking.groups(tuple(pins), 80)
    assert [one.name for (one,) in grouped] == [
        "cuda-toolkit",
        "nvidia-cublas-cu12",
        "nvidia-curand-cu12",
        "nvidia-nvshmem-cu13",
        "nvidia-cudnn-cu12",
        "nvidia-nccl-cu12",
        "nvidia-cusparselt-cu12",
        "nvidia-cufile-cu12",
        "torch",
        "triton",
        "torchvision",
        "numpy",
        "filelock",
    ]


NAMES = st.one_of(
    st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
    st.sampled_from(["torch", "triton", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "cuda-toolkit", "numpy"]),
)
PINS = st.dictionaries(NAMES, st.one_of(st.none(), st.integers(1, 10**9)), min_size=1, max_size=60).map(
    lambda sizes: tuple(pin(name, size) for name, size in sizes.items())
)


@given(PINS, st.integers(1, 120), st.one_of(st.none(), st.integers(10**5, 10**10)), st.randoms())
def test_any_wheels_are_grouped_by_rule(
    pins: tuple[Pin, ...], room: int, limit: int | None, shuffle: random.Random
) -> None:
    """Each wheel once, no more layers than there is room for, the order of the pins of no account; or a PlanError."""
    shuffled = tuple(shuffle.sample(pins, len(pins)))
    try:
        grouped = stacking.groups(pins, room, limit)
    except PlanError:
        least = stacking.part_count(pins, limit) + any(map(stacking.has_modules, pins))
        assert least > room
        with pytest.raises(PlanError):
            stacking.groups(shuffled, room, limit)
        return
    assert sorted(one.name for group in grouped for one in group) == sorted(one.name for one in pins)
    counts = [stacking.part_count(group, limit) + any(map(stacking.has_modules, group)) for group in grouped]
    assert sum(counts) <= room
    assert stacking.groups(shuffled, room, limit) == grouped
    *alone, last = grouped
    assert all(len(group) == 1 for group in alone)
    assert len(last) == 1 or all(one.weight <= group[0].weight for one in last for group in alone)


@given(PINS, st.integers(10, 120))
def test_more_room_never_makes_more_wheels_share(pins: tuple[Pin, ...], room: int) -> None:
    """So a wheel alone in its layer for one publish target is so for every one that takes more layers."""
    less, more = ({group for group in stacking.groups(pins, size) if len(group) == 1} for size in (room, room + 1))
    assert less <= more


def test_rooms_make_use_of_what_there_is() -> None:
    """Never more than there is, never none for additions, and for few layers as for many much the same share."""
    for layers in range(6, 118):
        rooms = stacking.rooms(layers)
        assert min(rooms) >= 2
        assert min(layers, 112) <= sum(rooms) <= layers
    assert stacking.rooms(116) == stacking.rooms(114) == stacking.ROOM  # of a base of one layer, and of three


@given(st.integers(1, 10**10), st.integers(10**5, 10**10))
def test_parts_suffice_for_what_a_wheel_may_weigh(size: int, limit: int) -> None:
    """Files that are each a little over half a layer are the worst case: one to a part."""
    count = stacking.part_count((pin("big", size),), limit)
    half = limit // 2 + 1
    assert count == 1 or count >= size // half
    assert stacking.part_count((pin("big", size),), None) == 1
