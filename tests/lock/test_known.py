from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import loopback
from torchkiln.assembly import together
from torchkiln.errors import LockError
from torchkiln.fetch import fetch
from torchkiln.lock import baselock, fit, known, lockfile, rows
from torchkiln.matrix import facts, schema
from torchkiln.matrix.factfile import Facts, NeedFact, WheelFact
from torchkiln.matrix.target import Accelerator, Target, select
from torchkiln.oci.image import Config
from torchkiln.plan import ImagePlan
from torchkiln.specs import BaseSpec, WheelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.loopback import Index
    from torchkiln.home import Home
    from torchkiln.lock.known import Known
    from torchkiln.lock.lockfile import Pin

ROOT = Path(__file__).parents[2]
MATRIX = schema.load(ROOT / "matrix.yaml")
TAG = "cp311-cp311-manylinux_2_28_x86_64"
TORCH, VISION = f"torch-2.8.0+cu126-{TAG}.whl", f"torchvision-0.23.0+cu126-{TAG}.whl"


def row(accelerator: Accelerator) -> Target:
    """A row of torch 2.8.0 and its torchvision for an accelerator."""
    (target,) = select(MATRIX.targets, ["torch28-cu128"])
    release = replace(target.release, torchaudio="", companions=("numpy>=2",))
    return replace(target, release=release, accelerator=accelerator)


CUDA = row(Accelerator(id="cu126", kind="cuda", version="12.6"))
ROCM = row(Accelerator(id="rocm64", kind="rocm", version="6.4"))
BASE = BaseSpec(base=CUDA.base, lock=baselock.make([("libpython3.11-minimal", "3.11.2-6")]))
BOTH = ("one/project", "another/project")


def stated(*wheels: WheelFact, needs: tuple[NeedFact, ...] = ()) -> Facts:
    """The facts, with these about the PyTorch index and no others."""
    return facts.read().model_copy(update={"wheels": wheels, "needs": needs})


def need(torch: str, variant: str, *requires: str) -> NeedFact:
    """What a build asks for."""
    return NeedFact.model_validate({"torch": torch, "variant": variant, "requires": list(requires)})


def wheel(file: str, sha256: str, *by: str, size: int = 0) -> WheelFact:
    """What is known of a file, with a hash of one repeated digit."""
    return WheelFact.model_validate({"file": file, "sha256": sha256 * 64, "by": list(by), "size": size})


NEEDS = (
    need("2.8.0", "cu126", "nvidia-blas==12.6", 'triton==3.4.0; python_version < "3.13"'),
    need("2.8.0", "rocm6.4", "pytorch-triton-rocm==3.4.0"),
)
FACTS = stated(
    wheel(TORCH, "a", *BOTH, size=813),
    wheel(TORCH.replace("311", "312"), "e", *BOTH),
    wheel(VISION, "b", "one/project"),
    wheel(TORCH.replace("cu126", "rocm6.4"), "c", *BOTH),
    wheel(VISION.replace("cu126", "rocm6.4"), "d", *BOTH),
    wheel("pytorch_triton_rocm-3.4.0-cp311-cp311-linux_x86_64.whl", "f", *BOTH),
    needs=NEEDS,
)


@pytest.fixture
def index() -> Iterator[Index]:
    """A default index alone: the PyTorch index answers nobody."""
    with loopback.serve() as served:
        served.down |= {"whl/cu126", "whl/rocm6.4"}
        requires = ("filelock", "nvidia-blas==12.8", "cuda-toolkit[blas]", "triton==3.4.0", "opt; extra == 'opt'")
        served.add("torch", "2.8.0", TAG, requires=requires)
        served.add("torchvision", "0.23.0", TAG, requires=("torch==2.8.0", "numpy", "pillow"))
        served.add("pytorch-triton-rocm", "3.4.0", body=b"unrelated")
        served.add("triton", "3.4.0", TAG, requires=("setuptools",))
        for name, version in (("filelock", "3.0"), ("nvidia-blas", "12.6"), ("nvidia-blas", "12.8"), ("opt", "1")):
            served.add(name, version)
        for name in ("numpy", "pillow", "setuptools"):
            served.add(name, "2.0")
        served.add("accelerate", "1.0", requires=("torch>=2",))
        yield served


def asked(index: Index, tmp_path: Path, target: Target, known_facts: Facts = FACTS) -> Known:
    """What a row asks for, from the facts."""
    return known.wheels(fit.asked(target), target, index.environment(tmp_path), known_facts)


def by_name(found: Known) -> dict[str, Pin]:
    """Pins."""
    return {pin.name: pin for pin in found.pins}


@pytest.mark.parametrize("core", [True, False])
def test_a_lock_is_made_without_the_pytorch_index(index: Index, tmp_path: Path, core: bool) -> None:  # noqa: FBT001  pytest passes it
    """Its files are those of the facts, what they ask for is the variant's, the rest is as the default index has it."""
    for file in index.files["simple"].values():
        file.core = file.core if core else b""
    pins = by_name(asked(index, tmp_path, CUDA))
    assert {name: pin.version for name, pin in pins.items()} == {
        "filelock": "3.0",
        "numpy": "2.0",
        "nvidia-blas": "12.6",
        "pillow": "2.0",
        "setuptools": "2.0",
        "torch": "2.8.0+cu126",
        "torchvision": "0.23.0+cu126",
        "triton": "3.4.0",
    }
    assert (pins["torch"].sha256, pins["torch"].filename, pins["torch"].size) == ("a" * 64, TORCH, 813)
    assert (pins["torchvision"].sha256, pins["torchvision"].size) == ("b" * 64, None)
    assert pins["filelock"].sha256 == index.files["simple"]["filelock-3.0-py3-none-any.whl"].sha256
    assert not [page for page in index.visited if page.startswith("whl/")]


def test_the_lock_fits_and_says_whose_word_each_hash_is(index: Index, tmp_path: Path) -> None:
    """The heading names those who state it, and marks what nobody else confirms."""
    found = asked(index, tmp_path, CUDA)
    assert found.sources.keys() == {"torch", "torchvision"}
    assert "2 sources that agree: one/project, another/project" in found.sources["torch"]
    lock = lockfile.make(fit.asked(CUDA), found.pins, "uv", found.sources.items())
    assert lock.unconfirmed == ("torchvision",)
    assert lockfile.parse(lockfile.render(lock)) == lock
    fit.check_fits(lock, CUDA)


def test_the_triton_of_rocm_is_that_of_the_facts(index: Index, tmp_path: Path) -> None:
    """Not the unrelated wheel of that name and version on the default index; it asks for what Triton does."""
    pins = by_name(asked(index, tmp_path, ROCM))
    assert pins["pytorch-triton-rocm"].sha256 == "f" * 64
    assert {"triton", "nvidia-blas"} & pins.keys() == set()
    assert "setuptools" in pins


def test_additions_are_resolved_under_the_pins(index: Index, tmp_path: Path) -> None:
    """Without the index too, an addition that wants torch gets the row's."""
    constraints = [f"{name}=={pin.version}" for name, pin in by_name(asked(index, tmp_path, CUDA)).items()]
    inputs = replace(fit.asked(CUDA), requirements=("accelerate",))
    found = known.wheels(inputs, CUDA, index.environment(tmp_path), FACTS, constraints=constraints)
    assert [pin.name for pin in found.pins] == ["accelerate"]
    assert found.sources == {}


@pytest.mark.parametrize(
    ("target", "incomplete", "missing"),
    [
        (CUDA, stated(*FACTS.wheels[:2], needs=NEEDS), "the hash of torchvision==0.23.0+cu126"),
        (ROCM, stated(*FACTS.wheels[:5], needs=NEEDS), "the hash of pytorch-triton-rocm==3.4.0"),
        (CUDA, stated(*FACTS.wheels, needs=NEEDS[1:]), "what torch 2.8.0+cu126 asks for"),
        (replace(CUDA, base=replace(CUDA.base, glibc="2.17")), FACTS, "the hash of torch==2.8.0+cu126"),
        (replace(CUDA, base=replace(CUDA.base, python="3.12")), FACTS, "the hash of torchvision==0.23.0+cu126"),
    ],
    ids=["hash", "triton", "requirements", "glibc", "python"],
)
def test_a_row_of_which_anything_is_unknown_is_not_locked(
    index: Index, tmp_path: Path, target: Target, incomplete: Facts, missing: str
) -> None:
    """What is missing is named, and nothing is asked of anybody."""
    assert any(text.startswith(missing) for text in known.lockable(target, incomplete))
    with pytest.raises(LockError, match="the facts do not hold all") as raised:
        asked(index, tmp_path, target, incomplete)
    assert missing in raised.value.what
    assert index.visited == []


def test_a_row_of_the_default_index_lacks_nothing() -> None:
    """It needs no facts."""
    (target,) = select(MATRIX.targets, ["torch28-cu128"])
    assert known.lockable(target, stated()) == ()


def test_a_triton_that_its_python_does_not_get_is_not_wanted() -> None:
    """ROCm builds of torch 2.5.1 ask for Triton below Python 3.13 only."""
    release = replace(ROCM.release, torch="2.5.1", torchvision="")
    needs = need("2.5.1", "rocm6.4", "pytorch-triton-rocm==3.1.0; python_version<'3.13'")
    file = wheel("torch-2.5.1+rocm6.4-cp313-cp313-linux_x86_64.whl", "a")
    target = replace(ROCM, release=release, base=replace(ROCM.base, python="3.13"))
    assert known.lockable(target, stated(file, needs=(needs,))) == ()


@pytest.mark.parametrize("metadata", ["as the facts say", "another"])
def test_a_wrong_fact_gets_into_no_image(index: Index, tmp_path: Path, home: Home, metadata: str) -> None:
    """Once the index can be reached, its file is known by its hash, and what it asks for is held against the lock."""
    requires = ("filelock", "nvidia-blas==12.6" if metadata == "as the facts say" else "nvidia-blas==12.9")
    index.down.clear()
    torch = index.add("torch", "2.8.0+cu126", TAG, folder="whl/cu126", requires=requires)
    vision = index.add("torchvision", "0.23.0+cu126", TAG, folder="whl/cu126", requires=("torch==2.8.0",))
    files = [WheelFact(file=pin.filename, sha256=pin.sha256) for pin in (torch, vision)]
    found = asked(index, tmp_path, CUDA, stated(*files, needs=NEEDS))
    lock = lockfile.make(fit.asked(CUDA), found.pins, "uv", found.sources.items())
    paths = fetch(home, lock, environment=index.environment(tmp_path))
    plan = ImagePlan(target=CUDA.id, layers=(BASE, WheelSpec(pins=lock.pins)), config=Config())
    with nullcontext() if metadata == "as the facts say" else pytest.raises(LockError, match=r"nvidia-blas==12\.9"):
        together.held(plan, lock, paths)


@pytest.mark.network
def test_what_the_facts_give_is_what_the_wheel_itself_gives() -> None:
    """The lock of the row whose wheel could be read was made from that wheel; the facts lead to the same pins."""
    (target,) = select(MATRIX.targets, ["torch213-cpu"])
    committed = rows.read(ROOT / "images/locks", target)
    preferences = {pin.name: pin.version for pin in committed.pins}
    found = known.wheels(fit.asked(target), target, os.environ, facts.read(), preferences=preferences)
    assert {(pin.name, pin.version, pin.sha256) for pin in found.pins} == {
        (pin.name, pin.version, pin.sha256) for pin in committed.pins
    }


def test_a_server_without_parts_of_files_is_told(index: Index, tmp_path: Path) -> None:
    """Neither metadata beside the wheel nor parts of it: the wheel of gigabytes is not fetched for it."""
    index.ranges = False
    for file in index.files["simple"].values():
        file.core = b""
    with pytest.raises(LockError, match=r"metadata of torch-2\.8\.0"):
        asked(index, tmp_path, CUDA)
