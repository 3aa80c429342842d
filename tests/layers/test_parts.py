"""Wheels too big for one layer: split by files, within the limit, and refused where that can't be."""

from __future__ import annotations

import random
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import toys
from torchkiln import stacking
from torchkiln.errors import PlanError
from torchkiln.layers import parts, wheel
from torchkiln.layers.install import File
from torchkiln.oci.store import Store
from torchkiln.specs import Part, WheelSpec

LIMIT = 100_000
FILES = {f"toy/{name}.bin": random.Random(name).randbytes(40_000) for name in "abcdef"}  # noqa: S311  noise


def part_specs(path: Path, limit: int) -> tuple[list[WheelSpec], dict[str, Path]]:
    """The parts that a wheel is planned as, and where it lies."""
    whole, paths = toys.spec(path)
    count = stacking.part_count(whole.pins, limit)
    return [replace(whole, part=Part(number=number, max_bytes=limit)) for number in range(1, count + 1)], paths


def contents(store: Store, spec: WheelSpec, paths: dict[str, Path], limit: int) -> dict[str, bytes]:
    """Files of a layer by path, whose blob keeps to the limit."""
    layer = wheel.build(store, spec, paths)
    assert layer.descriptor.size <= limit
    assert layer.title == spec.title
    return {name: data for name, (entry, data) in toys.unpacked(store, layer).items() if entry.isfile()}


def test_parts_together_are_the_wheel(tmp_path: Path) -> None:
    """Each file is in one part; every blob keeps to the limit; what is not needed is empty and so in no image."""
    store, path = Store(tmp_path / "store"), toys.make_wheel(tmp_path, files=FILES, stored=["toy/a.bin"])
    specs, paths = part_specs(path, LIMIT)
    whole = contents(store, WheelSpec(pins=specs[0].pins), paths, 1 << 30)
    found = [contents(store, spec, paths, LIMIT) for spec in specs]
    assert sum(len(part) for part in found) == len(whole)
    assert {name: data for part in found for name, data in part.items()} == whole
    assert [bool(part) for part in found] == [True] * 3 + [False] * (len(specs) - 3)
    assert wheel.build(store, specs[-1], paths).empty
    assert [spec.title for spec in specs[:2]] == ["toy 1.0, part 1", "toy 1.0, part 2"]


def test_golden_parts(tmp_path: Path) -> None:
    """Which files a part holds never changes silently: a change here needs a new Part.FORMAT, or WheelSpec.FORMAT."""
    whole, paths = toys.spec(Path(__file__).parents[1] / "golden" / "golden-1.0-py3-none-any.whl")
    made = [
        wheel.build(Store(tmp_path), replace(whole, part=Part(number=number, max_bytes=12_000)), paths)
        for number in (1, 2, 3)
    ]
    assert [layer.descriptor.digest for layer in made[:2]] == [
        "sha256:7b1e0e6381b9f7546dc286834d40db7ff780fe5d44eb6ad379e66c891121b131",
        "sha256:b255b23b5e148777f482f4f112aa6a1bd6c1adbcf109be8965b31a6097da1902",
    ]
    assert made[2].empty


def test_parts_are_made_in_parallel_like_other_layers(tmp_path: Path) -> None:
    """Each part is a job of its own, with the bytes that it has alone."""
    path = toys.make_wheel(tmp_path, files=FILES)
    specs, paths = part_specs(path, LIMIT)
    built = wheel.build_all(Store(tmp_path / "together"), specs, paths, workers=2)
    assert list(built) == [wheel.build(Store(tmp_path / "alone"), spec, paths) for spec in specs]


def test_a_file_that_fits_in_no_layer_is_refused(tmp_path: Path) -> None:
    """By name, with its size and the limit, from the wheel's directory alone."""
    path = toys.make_wheel(tmp_path, files={**FILES, "toy/big.so": random.Random(1).randbytes(200_000)})  # noqa: S311
    specs, paths = part_specs(path, LIMIT)
    with pytest.raises(PlanError) as raised:
        parts.check(specs, paths)
    assert f"/{toys.SITE}/toy/big.so (200" in raised.value.what
    assert f"at most {LIMIT} bytes" in raised.value.what
    assert "a.bin" not in raised.value.what
    assert raised.value.where == path.name
    parts.check(part_specs(path, 210_000)[0], paths)


def test_what_would_do_for_all_files_is_told(tmp_path: Path) -> None:
    """Of all wheels that are split, also those that share a layer: whose files are too big, and the least limit."""
    big = {name: random.Random(name).randbytes(size) for name, size in (("one", 150_000), ("two", 200_000))}  # noqa: S311
    made = [
        toys.spec(toys.make_wheel(tmp_path, name=name, files={f"{name}/big.so": data})) for name, data in big.items()
    ]
    others = [toys.spec(toys.make_wheel(tmp_path, name=name, files={f"{name}/a.py": b""})) for name in ("six", "ten")]
    paths = {sha256: path for _, found in (*made, *others) for sha256, path in found.items()}
    groups = [made[0][0].pins + others[0][0].pins, made[1][0].pins, others[1][0].pins]

    def planned(limit: int) -> list[WheelSpec]:
        numbers = range(1, 9)
        return [WheelSpec(pins=pins, part=Part(number=one, max_bytes=limit)) for pins in groups for one in numbers]

    with pytest.raises(PlanError) as raised:
        parts.check(planned(LIMIT), paths)
    assert raised.value.where == ", ".join(sorted(found[spec.pins[0].sha256].name for spec, found in made))
    assert raised.value.what.index("two/big.so (200") < raised.value.what.index("one/big.so (150")
    (least,) = re.findall(r"max_layer_bytes of at least (\d+), if the base fits too", raised.value.remedy)
    parts.check(planned(int(least)), paths)
    with pytest.raises(PlanError, match="two/big"):
        parts.check(planned(int(least) - 1), paths)


def test_parts_that_do_not_suffice_are_refused(tmp_path: Path) -> None:
    """A plan that expected fewer is an error, never a layer that lacks files."""
    specs, paths = part_specs(toys.make_wheel(tmp_path, files=FILES), LIMIT)
    parts.check(specs, paths)
    with pytest.raises(PlanError, match=f"3 layers of {LIMIT} bytes are needed, 2 are planned"):
        parts.check(specs[:2], paths)


def test_wheels_that_are_whole_are_not_looked_into() -> None:
    """The check opens nothing for them."""
    parts.check([WheelSpec(pins=())], {})


NAME = st.text(st.characters(codec="utf-8", exclude_characters="/\0\\", exclude_categories=("Cs", "Cc")), min_size=1)
NAMES = st.lists(NAME.filter(lambda name: name.strip(".") and len(name.encode()) < 200), min_size=1, max_size=4).map(
    "/".join
)


@st.composite
def files(draw: st.DrawFn) -> list[File]:
    """Files of a wheel as they are installed."""
    sizes = draw(st.dictionaries(NAMES.map("opt/{}".format), st.integers(0, 5000), max_size=40))
    kept = {name: size for name, size in sizes.items() if not any(other.startswith(f"{name}/") for other in sizes)}
    return [File(path=name, mode=0o664, size=size, hash="", content=bytes(size)) for name, size in sorted(kept.items())]


@given(files(), st.integers(1_000, 40_000), st.randoms())
def test_any_split_has_each_file_once_and_keeps_the_limit(
    found: list[File], limit: int, shuffle: random.Random
) -> None:
    """Or names exactly the files that fit nowhere; the order in which files are given plays no part."""
    shuffled = shuffle.sample(found, len(found))
    try:
        split = parts.split(shuffled, limit)
    except PlanError:
        assert any(parts.ENDS + parts.weigh(file) + 2_000 > limit for file in found)  # 2,000 for its folders
        return
    assert sorted(path for part in split for path in part) == sorted(file.path for file in found)
    assert all(part == tuple(sorted(part)) for part in split)
    weights = {file.path: parts.weigh(file) for file in found}
    assert all(sum(weights[path] for path in part) <= limit for part in split)
    assert split == parts.split(found, limit)


@settings(max_examples=30)
@given(
    st.dictionaries(
        NAMES.map("toy/{}".format),
        st.tuples(st.integers(0, 30_000), st.booleans(), st.booleans()),
        max_size=12,
    ),
    st.integers(40_000, 120_000),
)
def test_no_blob_is_larger_than_its_part_may_be(wanted: dict[str, tuple[int, bool, bool]], limit: int) -> None:
    """Whatever the names, and whether contents compress or are stored: what was weighed beforehand is what it takes."""
    kept = {
        name: random.Random(name).randbytes(size) if noise else bytes(size)  # noqa: S311
        for name, (size, noise, _) in wanted.items()
        if not any(other.startswith(f"{name}/") for other in wanted)
    }
    with tempfile.TemporaryDirectory() as folder:
        path = toys.make_wheel(Path(folder), files=kept, stored=[name for name in kept if wanted[name][2]])
        specs, paths = part_specs(path, limit)
        parts.check(specs, paths)
        store = Store(Path(folder) / "store")
        found = [contents(store, spec, paths, limit) for spec in specs]
        assert {f"{toys.SITE}/{name}" for name in kept} <= {name for part in found for name in part}
