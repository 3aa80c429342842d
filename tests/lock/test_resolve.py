from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import loopback
from torchkiln.errors import HashMismatchError, LockError
from torchkiln.lock import fit, lockfile, resolve, rows
from torchkiln.matrix import schema
from torchkiln.matrix.target import Target, select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.loopback import Index
    from torchkiln.lock.lockfile import Pin

ROOT = Path(__file__).parents[2]
MATRIX = schema.load(ROOT / "matrix.yaml")


def row(name: str) -> Target:
    """A row with few companions, to keep the index small."""
    (target,) = select(MATRIX.targets, [name])
    return replace(target, release=replace(target.release, companions=("numpy<2.3",)))


BIG, SMALL = row("torch25-cu124"), row("torch213-cpu")


@pytest.fixture
def index() -> Iterator[Index]:
    """An index on this machine with a toy trio and some NumPy."""
    with loopback.serve() as served:
        served.add("torch", "2.5.1", "cp311-cp311-manylinux1_x86_64", requires=("filelock",))
        served.add("torch", "2.5.1", "cp312-cp312-manylinux1_x86_64")
        served.add("torchvision", "0.20.1", "cp311-cp311-manylinux1_x86_64", requires=("torch==2.5.1",))
        served.add("torchaudio", "2.5.1", "cp311-cp311-manylinux1_x86_64", requires=("torch==2.5.1",))
        served.add("filelock", "3.0")
        for version in ("2.2.6", "2.4.0"):
            served.add("numpy", version, "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64")
        yield served


def resolved(target: Target, index: Index, tmp_path: Path, **more: str) -> dict[str, Pin]:
    """Pins by name."""
    asked = fit.asked(target)
    found = resolve.wheels(asked, target, index.environment(tmp_path) | more, hashes={})
    assert "127.0.0.1" not in lockfile.render(lockfile.make(asked, found, "uv"))
    return {pin.name: pin for pin in found}


def test_a_default_row_is_resolved_from_the_default_index(index: Index, tmp_path: Path) -> None:
    """Versions obey the bounds, dependencies come along, and each pin is one file of the row's platform."""
    pins = resolved(BIG, index, tmp_path)
    assert {name: pin.version for name, pin in pins.items()} == {
        "filelock": "3.0",
        "numpy": "2.2.6",
        "torch": "2.5.1",
        "torchaudio": "2.5.1",
        "torchvision": "0.20.1",
    }
    file = index.files["simple"]["torch-2.5.1-cp311-cp311-manylinux1_x86_64.whl"]
    assert (pins["torch"].sha256, pins["torch"].size) == (file.sha256, len(file.content))


def test_a_build_tag_wins_as_in_pip(index: Index, tmp_path: Path) -> None:
    """Of two wheels with the same tags the one with the higher build tag is pinned, by file name."""
    index.add("filelock", "3.0", "2-py3-none-any", body=b"2")
    index.add("filelock", "3.0", "10-py3-none-any", body=b"10")
    assert resolved(BIG, index, tmp_path)["filelock"].filename == "filelock-3.0-10-py3-none-any.whl"


def test_an_index_with_another_torch_is_an_error(index: Index, tmp_path: Path) -> None:
    """An index that serves 2.5.0 for a 2.5.1 row never yields a lock."""
    for name in [name for name in index.files["simple"] if name.startswith("torch-")]:
        del index.files["simple"][name]
    index.add("torch", "2.5.0", "cp311-cp311-manylinux1_x86_64")
    with pytest.raises(LockError, match=r"torch==2\.5\.1"):
        resolved(BIG, index, tmp_path)


def test_a_package_without_a_wheel_is_named_and_not_run(index: Index, tmp_path: Path) -> None:
    """Nothing is ever built from source: code of an sdist would run on the building machine."""
    del index.files["simple"]["filelock-3.0-py3-none-any.whl"]
    evidence = tmp_path / "ran"
    sdist = loopback.sdist("filelock", "3.0", code=f"open({str(evidence)!r}, 'w').close()")
    index.files["simple"]["filelock-3.0.tar.gz"] = sdist
    with pytest.raises(LockError, match="filelock"):
        resolved(BIG, index, tmp_path)
    assert not evidence.exists()


def test_a_wheel_that_the_base_cannot_load_is_named(index: Index, tmp_path: Path) -> None:
    """A wheel for a newer glibc than the base has is no wheel for it."""
    del index.files["simple"]["filelock-3.0-py3-none-any.whl"]
    index.add("filelock", "3.0", "cp311-cp311-manylinux_2_39_x86_64")
    with pytest.raises(LockError, match="filelock"):
        resolved(BIG, index, tmp_path)


def test_a_file_listed_without_a_hash_is_hashed(index: Index, tmp_path: Path) -> None:
    """An index that gives no sha256 costs a download; the lock pins the bytes all the same."""
    pin = index.add("filelock", "3.0", sha256="")
    assert resolved(BIG, index, tmp_path)["filelock"] == pin
    assert pin.filename in {name for name, _ in index.asked}


def suffixed(index: Index, *, sha256: str | None = None) -> Pin:
    """The CPU build on the stand-in of the PyTorch index, and the tempting default build beside it."""
    index.add("torch", "2.13.0", "cp311-cp311-manylinux_2_28_x86_64", body=b"the CUDA build")
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    return index.add("torch", "2.13.0+cpu", tag, folder="whl/cpu", requires=("filelock",), sha256=sha256)


def test_a_variant_comes_from_the_pytorch_index_and_the_rest_does_not(index: Index, tmp_path: Path) -> None:
    """Only the trio is looked for there, and its page of links, which gives no sizes, is enough."""
    pin = suffixed(index)
    index.add("numpy", "2.2.9", folder="whl/cpu", body=b"a mirror of something")
    pins = resolved(SMALL, index, tmp_path)
    assert pins["torch"] == pin
    assert pins["numpy"].version == "2.2.6"


@pytest.mark.parametrize("state", ["absent", "down"])
def test_an_index_that_fails_never_leads_to_another(index: Index, tmp_path: Path, state: str) -> None:
    """Without the variant there is an error, though the default index has a torch of that version."""
    suffixed(index)
    if state == "down":
        index.down.add("whl/cpu")
    else:
        index.files["whl/cpu"].clear()
    with pytest.raises(LockError, match="torch"):
        resolved(SMALL, index, tmp_path)


def test_a_folder_stands_in_for_an_index_that_cannot_be_reached(index: Index, tmp_path: Path) -> None:
    """The trio's wheels at hand are hashed and locked; nothing else is taken from the folder."""
    pin = suffixed(index)
    (tmp_path / pin.filename).write_bytes(index.files["whl/cpu"][pin.filename].content)
    (tmp_path / "numpy-2.2.9-py3-none-any.whl").write_bytes(loopback.wheel("numpy", "2.2.9"))
    index.files["whl/cpu"].clear()
    pins = resolved(SMALL, index, tmp_path, TORCHKILN_FIND_LINKS=str(tmp_path))
    assert pins["torch"] == pin
    assert pins["numpy"].version == "2.2.6"


def test_a_known_hash_must_be_met(index: Index, tmp_path: Path) -> None:
    """The facts say what torch 2.13.0+cpu is; a file of that name with other bytes is not locked."""
    suffixed(index)
    with pytest.raises(HashMismatchError, match="is not the file that others have"):
        resolve.wheels(fit.asked(SMALL), SMALL, index.environment(tmp_path))


def test_an_index_that_cannot_be_reached_says_what_to_check(index: Index, tmp_path: Path) -> None:
    """The remedy names the settings of the client."""
    with pytest.raises(LockError) as raised:
        resolved(BIG, index, tmp_path, UV_DEFAULT_INDEX="http://user:secret@127.0.0.1:1/simple")
    assert "UV_DEFAULT_INDEX" in raised.value.remedy
    assert "secret" not in str(raised.value)


@pytest.mark.network
def test_the_real_index_still_resolves_the_big_row() -> None:
    """The trio of the committed lock is what the default index gives today, to the hash."""
    (target,) = select(MATRIX.targets, ["torch25-cu124"])
    committed = rows.read(ROOT / "images/locks", target)
    today = resolve.wheels(fit.asked(target), target, os.environ)
    trio = ("torch", "torchvision", "torchaudio")
    assert {pin for pin in today if pin.name in trio} == {pin for pin in committed.pins if pin.name in trio}


@pytest.mark.network
@pytest.mark.parametrize("name", ["torch25-cu124", "torch26-cu124", "torch28-cu128"])
def test_every_pinned_wheel_can_still_be_had(name: str) -> None:
    """The default index has each file of the committed locks, under its hash."""
    (target,) = select(MATRIX.targets, [name])
    lock = rows.read(ROOT / "images/locks", target)
    assert resolve.locate(lock, lock.pins, os.environ).keys() == {pin.sha256 for pin in lock.pins}
