"""uv against an index on this machine that serves the pages of the PyTorch index, with every fault it may have."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import loopback
from torchkiln.errors import HashMismatchError, LockError
from torchkiln.fetch import fetch
from torchkiln.lock import fit, lockfile, resolve
from torchkiln.lock import index as asking
from torchkiln.matrix import schema
from torchkiln.matrix.target import Accelerator, Target, select

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.loopback import Index
    from torchkiln.home import Home
    from torchkiln.lock.lockfile import Pin

ROOT = Path(__file__).parents[2]
MATRIX = schema.load(ROOT / "matrix.yaml")
TAG = "cp311-cp311-manylinux_2_28_x86_64"


def row(accelerator: Accelerator) -> Target:
    """A row of torch 2.8.0 and its torchvision for an accelerator; no other wheels."""
    (target,) = select(MATRIX.targets, ["torch28-cu128"])
    release = replace(target.release, torchaudio="", companions=())
    return replace(target, release=release, accelerator=accelerator)


CUDA = row(Accelerator(id="cu126", kind="cuda", version="12.6"))
ROCM = row(Accelerator(id="rocm64", kind="rocm", version="6.4"))


@pytest.fixture
def index() -> Iterator[Index]:
    """Two variants on the PyTorch index, and on the default index the build of PyPI and unrelated wheels."""
    with loopback.serve() as served:
        for variant in ("cu126", "rocm6.4"):
            triton = "pytorch-triton-rocm==3.4.0" if variant == "rocm6.4" else "triton==3.4.0"
            requires = ("filelock", triton)
            served.add("torch", f"2.8.0+{variant}", TAG, folder=f"whl/{variant}", requires=requires)
            served.add("torch", f"2.8.0+{variant}", TAG.replace("311", "312"), folder=f"whl/{variant}")
            pair = ("torch==2.8.0",)
            served.add("torchvision", f"0.23.0+{variant}", TAG, folder=f"whl/{variant}", requires=pair)
            served.add("torchaudio", f"2.8.0+{variant}", TAG, folder=f"whl/{variant}", requires=pair)
            served.add("filelock", "9.0", folder=f"whl/{variant}", body=b"a mirror")
        served.add("pytorch-triton-rocm", "3.4.0", "cp311-cp311-linux_x86_64", folder="whl/rocm6.4", body=b"real")
        served.add("triton", "3.4.0", TAG, folder="whl/cu126", body=b"a mirror")
        served.add("torch", "2.8.0", TAG, body=b"cu128")
        served.add("torchvision", "0.23.0", TAG, body=b"cu128", requires=("torch==2.8.0",))
        served.add("torchaudio", "2.8.0", TAG, body=b"cu128", requires=("torch==2.8.0",))
        served.add("pytorch-triton-rocm", "3.4.0", body=b"unrelated")
        served.add("pytorch-triton-rocm", "9.0", body=b"unrelated")
        served.add("triton", "3.4.0", TAG)
        served.add("filelock", "3.0")
        served.add("accelerate", "1.0", requires=("torch>=2", "filelock"))
        served.add("speech", "1.0", requires=("torchaudio",))
        yield served


def asked(index: Index, tmp_path: Path, target: Target, **more: str) -> dict[str, Pin]:
    """Pins by name of what a row asks for."""
    found = resolve.wheels(fit.asked(target), target, index.environment(tmp_path) | more, hashes={})
    return {pin.name: pin for pin in found}


def added(
    index: Index, tmp_path: Path, target: Target, requirement: str, constraints: Sequence[str] = ()
) -> dict[str, Pin]:
    """Pins by name of an addition to a row."""
    inputs = replace(fit.asked(target), requirements=(requirement,))
    found = resolve.wheels(inputs, target, index.environment(tmp_path), constraints=constraints, hashes={})
    return {pin.name: pin for pin in found}


def of(index: Index, folder: str, filename: str) -> str:
    """The sha256 of a file on the index."""
    return index.files[folder][filename].sha256


@pytest.mark.parametrize("style", ["html", "json"])
@pytest.mark.parametrize("core", [True, False])
def test_pages_of_every_form_give_the_same_pins(index: Index, tmp_path: Path, style: str, core: bool) -> None:  # noqa: FBT001  pytest passes it
    """PEP 503 or 691, with or without metadata beside the wheels (PEP 658): without it, uv reads parts of the wheel."""
    index.pages["whl/cu126"] = style
    for file in index.files["whl/cu126"].values():
        file.core = file.core if core else b""
    pins = asked(index, tmp_path, CUDA)
    assert {name: pin.version for name, pin in pins.items()} == {
        "filelock": "3.0",
        "torch": "2.8.0+cu126",
        "torchvision": "0.23.0+cu126",
        "triton": "3.4.0",
    }
    file = index.files["whl/cu126"][f"torch-2.8.0+cu126-{TAG}.whl"]
    assert (pins["torch"].sha256, pins["torch"].size) == (file.sha256, len(file.content))
    assert bool([part for name, part in index.asked if name.startswith("torch-") and part]) is not core


def test_only_what_is_built_for_the_variant_comes_from_its_index(index: Index, tmp_path: Path) -> None:
    """The index has copies of the rest; they come from the default index, where hashes can be checked."""
    pins = asked(index, tmp_path, CUDA)
    assert pins["triton"].sha256 == of(index, "simple", f"triton-3.4.0-{TAG}.whl")
    assert {page for page in index.visited if page.startswith("whl/")} == {"whl/cu126/torch", "whl/cu126/torchvision"}
    assert "simple/torch" not in index.visited


@pytest.mark.parametrize("unrelated", [("3.4.0", "9.0"), ("9.0",), ()])
def test_the_triton_of_rocm_comes_from_there_and_from_nowhere_else(
    index: Index, tmp_path: Path, unrelated: tuple[str, ...]
) -> None:
    """The default index has unrelated wheels of its name, with the very version or a higher one, or has none."""
    for version in {"3.4.0", "9.0"} - {*unrelated}:
        del index.files["simple"][f"pytorch_triton_rocm-{version}-py3-none-any.whl"]
    pin = asked(index, tmp_path, ROCM)["pytorch-triton-rocm"]
    assert (pin.version, pin.sha256) == (
        "3.4.0",
        of(index, "whl/rocm6.4", "pytorch_triton_rocm-3.4.0-cp311-cp311-linux_x86_64.whl"),
    )
    index.files["whl/rocm6.4"].pop(pin.filename)
    with pytest.raises(LockError, match="pytorch-triton-rocm"):
        asked(index, tmp_path, ROCM)


def test_settings_of_the_user_do_not_loosen_the_binding(index: Index, tmp_path: Path) -> None:
    """To ignore sources, to search folders, to take the best of all indexes: nothing built for a variant heeds it."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name, version in (("pytorch_triton_rocm", "3.4.0"), ("torch", "2.8.0+rocm6.4"), ("torch", "2.9.0")):
        (folder / f"{name}-{version}-py3-none-any.whl").write_bytes(loopback.wheel(name, version, body=b"unrelated"))
    settings = {"UV_NO_SOURCES": "1", "UV_FIND_LINKS": str(folder), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    settings["UV_INDEX"] = f"pytorch={index.url}/simple"  # people call theirs that
    assert asked(index, tmp_path, ROCM, **settings) == asked(index, tmp_path / "plain", ROCM)


@pytest.mark.parametrize("target", [CUDA, ROCM], ids=["cuda", "rocm"])
def test_an_addition_gets_the_torch_of_the_row(index: Index, tmp_path: Path, target: Target) -> None:
    """It is resolved under the pins of the row, and only what is new is given back."""
    pins = asked(index, tmp_path, target)
    constraints = [f"{name}=={pin.version}" for name, pin in pins.items()]
    assert list(added(index, tmp_path, target, "accelerate", constraints)) == ["accelerate"]
    assert "simple/torch" not in index.visited


def test_an_addition_without_pins_still_gets_the_variant(index: Index, tmp_path: Path) -> None:
    """A torch that only an addition wants is looked for on the index of the row."""
    pins = added(index, tmp_path, CUDA, "accelerate")
    assert pins["torch"].version == "2.8.0+cu126"


def test_another_of_the_trio_that_an_addition_wants_is_of_the_variant(index: Index, tmp_path: Path) -> None:
    """The row goes without torchaudio, an addition does not: the build of the row is pinned."""
    constraints = [f"{name}=={pin.version}" for name, pin in asked(index, tmp_path, CUDA).items()]
    pins = added(index, tmp_path, CUDA, "speech", constraints)
    assert {name: pin.version for name, pin in pins.items()} == {"speech": "1.0", "torchaudio": "2.8.0+cu126"}


def test_what_is_preferred_is_kept_where_it_still_does(index: Index, tmp_path: Path) -> None:
    """An earlier pin stands though there is something newer; one that the row no longer allows does not."""
    index.add("filelock", "2.0")
    preferences = {"filelock": "2.0", "triton": "3.3.0", "gone": "1.0"}
    environment = index.environment(tmp_path)
    found = resolve.wheels(fit.asked(CUDA), CUDA, environment, preferences=preferences, hashes={})
    versions = {pin.name: pin.version for pin in found}
    assert (versions["filelock"], versions["triton"]) == ("2.0", "3.4.0")
    assert "gone" not in versions


def test_an_addition_that_contradicts_a_pin_is_told_in_words(index: Index, tmp_path: Path) -> None:
    """Nothing of the row gives way to it."""
    index.add("old", "1.0", requires=("torch<2.8",))
    with pytest.raises(LockError, match=r"old.*torch<2\.8"):
        added(index, tmp_path, CUDA, "old", ["torch==2.8.0+cu126"])


@pytest.mark.parametrize("style", ["html", "json"])
def test_a_file_without_a_hash_is_an_error_that_names_it(index: Index, tmp_path: Path, style: str) -> None:
    """The index of the variant states none and no fact does: nothing says that these are the right bytes."""
    index.pages["whl/cu126"] = style
    index.files["whl/cu126"][f"torch-2.8.0+cu126-{TAG}.whl"].sha256 = ""
    with pytest.raises(LockError, match=r"no hash of torch-2\.8\.0\+cu126") as raised:
        asked(index, tmp_path, CUDA)
    assert "cu126" in raised.value.where


@pytest.mark.parametrize("style", ["html", "json"])
def test_a_known_hash_replaces_a_missing_one(index: Index, tmp_path: Path, style: str) -> None:
    """Where the facts know the file, what is served is held against them."""
    index.pages["whl/cu126"] = style
    name = f"torch-2.8.0+cu126-{TAG}.whl"
    right, index.files["whl/cu126"][name].sha256 = of(index, "whl/cu126", name), ""
    environment = index.environment(tmp_path)
    pins = resolve.wheels(fit.asked(CUDA), CUDA, environment, hashes={name: right})
    assert [pin.sha256 for pin in pins if pin.name == "torch"] == [right]
    with pytest.raises(HashMismatchError, match="is not the file that others have"):
        resolve.wheels(fit.asked(CUDA), CUDA, environment, hashes={name: "0" * 64})


def test_a_wrong_hash_is_found_when_the_bytes_come(index: Index, tmp_path: Path, home: Home) -> None:
    """An index that states another hash than its file has is believed by nobody: the file is refused."""
    name = f"torch-2.8.0+cu126-{TAG}.whl"
    index.files["whl/cu126"][name].sha256 = "1" * 64
    pins = asked(index, tmp_path, CUDA)
    assert pins["torch"].sha256 == "1" * 64
    lock = lockfile.make(fit.asked(CUDA), pins.values(), "uv")
    with pytest.raises(HashMismatchError, match=r"torch-2\.8\.0\+cu126"):
        fetch(home, lock, environment=index.environment(tmp_path), sleep=lambda _: None)
    assert not home.wheel("1" * 64, name).exists()


@pytest.mark.parametrize("style", ["html", "json"])
def test_a_yanked_file_is_refused_with_the_reason(index: Index, tmp_path: Path, style: str) -> None:
    """An exact version would still be given out (PEP 592); a lock begins with no file that was taken back."""
    index.pages["whl/cu126"] = style
    index.files["whl/cu126"][f"torch-2.8.0+cu126-{TAG}.whl"].yanked = "broken on Tuesdays"
    with pytest.raises(LockError, match=r"torch==2\.8\.0\+cu126. is yanked.*broken on Tuesdays"):
        asked(index, tmp_path, CUDA)


def test_a_file_that_was_yanked_later_can_still_be_had(index: Index, tmp_path: Path, home: Home) -> None:
    """What is pinned is fetched (PEP 592), and a warning says what its makers think of it."""
    pins = asked(index, tmp_path, CUDA)
    index.files["whl/cu126"][pins["torch"].filename].yanked = "too late"
    environment = index.environment(tmp_path) | {"UV_CACHE_DIR": str(tmp_path / "fresh")}
    lock = lockfile.make(fit.asked(CUDA), pins.values(), "uv")
    assert fetch(home, lock, environment=environment).keys() == {pin.sha256 for pin in pins.values()}


def test_folders_stand_in_for_the_index_only_with_all_that_it_has(index: Index, tmp_path: Path) -> None:
    """The Triton of ROCm is part of it: without that the index is asked; with it, were it there twice, nobody is."""
    folder = tmp_path / "links"
    folder.mkdir()
    names = [name for name in index.files["whl/rocm6.4"] if "filelock" not in name]
    for name in names:
        (folder / name).write_bytes(index.files["whl/rocm6.4"][name].content)
    expected = asked(index, tmp_path, ROCM)
    index.down.add("whl/rocm6.4")
    twice = shutil.copytree(folder, tmp_path / "copies")
    settings = {"TORCHKILN_FIND_LINKS": f"{folder}:{twice}", "UV_CACHE_DIR": str(tmp_path / "fresh")}
    assert asked(index, tmp_path, ROCM, **settings) == expected
    for copy in (folder, twice):
        (copy / "pytorch_triton_rocm-3.4.0-cp311-cp311-linux_x86_64.whl").unlink()
    with pytest.raises(LockError):
        asked(index, tmp_path, ROCM, **settings)


def test_an_index_that_is_late_is_waited_for(index: Index, tmp_path: Path) -> None:
    """Slow pages and slow files are still the right ones."""
    index.faults["whl/cu126/torch"] = ["slow"]
    assert asked(index, tmp_path, CUDA)["torch"].version == "2.8.0+cu126"


def test_an_index_that_recovers_is_asked_again(index: Index, tmp_path: Path) -> None:
    """503 and then fine: nobody notices."""
    index.faults["whl/cu126/torch"] = ["503"]
    assert asked(index, tmp_path, CUDA, UV_HTTP_RETRIES="2")["torch"].version == "2.8.0+cu126"
    assert index.faults["whl/cu126/torch"] == []


@pytest.mark.parametrize("fault", ["404", "503", "silent", "403"])
def test_an_index_that_fails_leads_to_no_other(index: Index, tmp_path: Path, fault: str) -> None:
    """Neither to the default index, which has that torch, nor to another variant; the message names who failed."""
    index.faults["whl/cu126/torch"] = [f"!{fault}"]
    with pytest.raises(LockError, match="torch") as raised:
        asked(index, tmp_path, CUDA, UV_HTTP_TIMEOUT="1")
    assert not {"simple/torch", "whl/rocm6.4/torch", "whl/cpu/torch"} & set(index.visited)
    assert "TORCHKILN_PYTORCH_INDEX" in raised.value.remedy


def test_an_index_that_never_stops_and_never_ends_is_told(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each byte of it comes within uv's own patience."""
    monkeypatch.setattr(asking, "LONGEST", 1)
    index.faults["whl/cu126/torch"] = ["!drip"]
    with pytest.raises(LockError, match="no answer out of the indexes in 1 seconds"):
        asked(index, tmp_path, CUDA)


@pytest.mark.parametrize("named", ["http://127.0.0.1:1/whl/", "http://me:hunter2@127.0.0.1:1/whl", "nowhere"])
def test_a_mirror_that_cannot_be_asked_is_called_by_its_variable(index: Index, tmp_path: Path, named: str) -> None:
    """However its address is written; uv's own words come without its own `error:` in front."""
    with pytest.raises(LockError) as raised:
        asked(index, tmp_path, CUDA, TORCHKILN_PYTORCH_INDEX=named)
    assert "TORCHKILN_PYTORCH_INDEX" in raised.value.remedy
    assert "error: " not in raised.value.what.replace("client error: ", "")
    assert "hunter2" not in str(raised.value)
