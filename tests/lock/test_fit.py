from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchkiln.errors import LockError, StaleLockError, StoreError
from torchkiln.lock import fit, lockfile, sections
from torchkiln.lock.lockfile import Lock, Pin
from torchkiln.matrix import facts, schema
from torchkiln.oci.compression import Compression

ROOT = Path(__file__).parents[2]
TARGETS = {target.id: target for target in schema.load(ROOT / "matrix.yaml").targets}
NAMES = [name for name, target in TARGETS.items() if (ROOT / "images/locks" / target.lock_name).is_file()]
FILES = {name: sections.read(ROOT / "images/locks" / TARGETS[name].lock_name) for name in NAMES}
LOCKS = {name: file.common for name, file in FILES.items() if file.common}
BIG, SMALL = TARGETS["torch25-cu124"], TARGETS["torch213-cpu"]


def with_pin(lock: Lock, name: str, changes: dict[str, Any]) -> Lock:
    """A lock in which one pin was edited."""
    pins = [replace(pin, **changes) if pin.name == name else pin for pin in lock.pins]
    return lockfile.make(lock.asked, pins, lock.resolver)


@pytest.mark.parametrize("name", NAMES)
def test_committed_locks_are_fresh_and_fit(name: str) -> None:
    """Every lock was made from its row as it is now; no network is needed to know."""
    fit.check_fresh(LOCKS[name], fit.asked(TARGETS[name]), TARGETS[name])
    fit.check_fits(LOCKS[name], TARGETS[name])
    assert LOCKS[name].asked.checksum == LOCKS[name].inputs


@pytest.mark.parametrize("name", NAMES)
def test_committed_locks_hold_no_address(name: str) -> None:
    """Where wheels come from is the business of the client's configuration."""
    text = (ROOT / "images/locks" / TARGETS[name].lock_name).read_text()
    assert "://" not in text
    assert sections.render(FILES[name]) == text


def test_the_cpu_wheel_is_the_one_that_others_have() -> None:
    """The index cannot be asked from everywhere; its hash is that of independent lock files."""
    known = facts.hashes(facts.read())
    (torch,) = [pin for pin in LOCKS["torch213-cpu"].pins if pin.name == "torch"]
    assert torch.version == "2.13.0+cpu"
    assert known[torch.filename] == torch.sha256


@pytest.mark.parametrize("name", ["torch25-cu124", "torch26-cu124"])
def test_what_no_wheel_declares_is_locked(name: str) -> None:
    """Triton of torch 2.5 and 2.6 imports setuptools on Python 3.11; NumPy stays in its bound; ninja is there."""
    pins = {pin.name: pin.version for pin in LOCKS[name].pins}
    assert {"setuptools", "ninja", "pip", "numpy"} <= pins.keys()
    assert pins["numpy"].startswith("2.2.")


def test_a_stale_lock_says_what_changed_and_what_to_run() -> None:
    """Every input that changed is named, in words."""
    changed = replace(
        BIG,
        release=replace(BIG.release, torchvision="0.20.0", companions=("numpy>=2,<2.4",)),
        base=replace(BIG.base, python="3.12"),
    )
    with pytest.raises(StaleLockError) as raised:
        fit.check_fresh(LOCKS["torch25-cu124"], fit.asked(changed), changed)
    text = str(raised.value)
    assert "no longer asks for torchvision==0.20.1" in text
    assert "now asks for torchvision==0.20.0" in text
    assert "now asks for numpy>=2,<2.4" in text
    assert "python was 3.11, is 3.12" in text
    assert "./inv lock --target torch25-cu124" in text


def test_another_index_makes_a_lock_stale() -> None:
    """The default build and the same build from the PyTorch index are different files."""
    moved = replace(BIG, accelerator=replace(BIG.accelerator, by_default=False))
    with pytest.raises(StaleLockError, match="index was default, is cu124"):
        fit.check_fresh(LOCKS["torch25-cu124"], fit.asked(moved), moved)


def test_a_heading_edited_by_hand_is_stale() -> None:
    """The checksum and the words it was made from belong together."""
    forged = replace(LOCKS["torch25-cu124"], inputs="sha256:" + "0" * 64)
    with pytest.raises(StaleLockError, match="edited by hand"):
        fit.check_fresh(forged, fit.asked(BIG), BIG)


@pytest.mark.parametrize(
    ("pin", "changes", "told"),
    [
        ("torch", {"version": "2.5.0"}, "torch is pinned at 2.5.0, the row says 2.5.1"),
        ("torch", {"version": "2.5.1+cu121"}, "torch 2.5.1+cu121 is built for cu121, the row is cu124"),
        ("torchvision", {"version": "0.20.1+cpu"}, "torchvision 0.20.1+cpu is built for cpu, the row is cu124"),
        ("torchaudio", {"name": "torchaudio-x"}, "torchaudio 2.5.1 is missing"),
        (
            "torch",
            {"filename": "torch-2.5.0-cp311-cp311-manylinux1_x86_64.whl"},
            "torch-2.5.0-cp311-cp311-manylinux1_x86_64.whl is not torch 2.5.1",
        ),
        (
            "numpy",
            {"filename": "numpy-2.2.6-cp312-cp312-manylinux_2_17_x86_64.whl"},
            "no wheel for Python 3.11, x86_64, glibc 2.36",
        ),
        ("numpy", {"filename": "numpy-2.2.6-cp311-cp311-manylinux_2_17_aarch64.whl"}, "no wheel for Python 3.11"),
        ("numpy", {"filename": "numpy-2.2.6-cp311-cp311-manylinux_2_40_x86_64.whl"}, "no wheel for Python 3.11"),
        ("numpy", {"filename": "numpy.whl"}, "numpy.whl is not a wheel's name"),
    ],
)
def test_a_lock_that_says_something_else_than_its_row_is_refused(pin: str, changes: dict[str, str], told: str) -> None:
    """An edit in one place only, another variant or another platform never gets as far as a download."""
    with pytest.raises(LockError) as raised:
        fit.check_fits(with_pin(LOCKS["torch25-cu124"], pin, changes), BIG)
    assert told in raised.value.what


def test_a_row_without_torchvision_refuses_a_lock_with_it() -> None:
    """What a row goes without is not in its image."""
    extra = Pin(
        name="torchvision",
        version="0.28.0+cpu",
        sha256="0" * 64,
        filename="torchvision-0.28.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        size=1,
    )
    lock = LOCKS["torch213-cpu"]
    with pytest.raises(LockError, match="the row goes without"):
        fit.check_fits(lockfile.make(lock.asked, [*lock.pins, extra], ""), SMALL)


def test_a_compiled_wheel_without_suffix_is_the_default_build() -> None:
    """A suffixless torch in a row of the PyTorch index is another build, however equal its version."""
    plain = {"version": "2.13.0", "filename": "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"}
    with pytest.raises(LockError, match="without a suffix is another build than cpu"):
        fit.check_fits(with_pin(LOCKS["torch213-cpu"], "torch", plain), SMALL)


def test_a_companion_deleted_from_a_lock_is_missed_without_its_wheel() -> None:
    """What the row itself asks for is held against the pins offline; what wheels ask for, when they are at hand."""
    lock = LOCKS["torch25-cu124"]
    less = lockfile.make(lock.asked, [pin for pin in lock.pins if pin.name != "ninja"], "")
    with pytest.raises(LockError, match="the row needs ninja, and no ninja is pinned"):
        fit.check_fits(less, BIG)
    with pytest.raises(LockError, match=r"the row needs numpy<2\.3,>=2, and numpy 2\.3\.0 is pinned"):
        fit.check_fits(with_pin(lock, "numpy", {"version": "2.3.0", "filename": "numpy-2.3.0-py3-none-any.whl"}), BIG)


def test_all_misfits_are_told_at_once() -> None:
    """A lock of another row lists everything that differs."""
    with pytest.raises(LockError) as raised:
        fit.check_fits(LOCKS["torch28-cu128"], BIG)
    assert all(word in raised.value.what for word in ("torch is", "torchvision is", "torchaudio is"))


def test_a_remedy_names_the_row_that_it_is_about() -> None:
    """With all that names it on the command line; locks are the same for every publish target, and know none."""
    row = replace(SMALL, compression=Compression(kind="zstd", level=3))
    told = {"./inv build --target ID": "--target torch213-cpu --compression zstd:3"}
    told |= {"git restore it, or ./inv lock --layers --target ID": "--layers --target torch213-cpu"}
    for remedy, names in told.items():
        with pytest.raises(StoreError) as raised, fit.named(row):
            raise StoreError("a layer is missing", remedy=remedy)
        assert raised.value.remedy == remedy.partition("--")[0] + names
