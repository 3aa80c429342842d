from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.matrix.rows import KNOWN, ROW, SMALL, row
from torchkiln.matrix import schema
from torchkiln.matrix.compat import told
from torchkiln.matrix.explain import explain
from torchkiln.matrix.mend import mended, newer_driver
from torchkiln.matrix.nearest import candidates, changes, legal, nearest
from torchkiln.matrix.target import Extra, Target, on

MATRIX = schema.load(Path(__file__).parents[2] / "matrix.yaml", KNOWN)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (row("2.5.0", "cu124", torchvision="0.16.0"), "torchvision 0.20.0"),
        (row("2.13.0", "cu130", torchaudio="2.13.0"), "torchaudio none"),
        (row("2.2.2", "cu121", companions="numpy>=2 pip"), "companion numpy<2, without companion numpy>=2"),
        (row("2.5.1", "cu124", companions="numpy"), "companion setuptools"),
        (row("2.5.1", "cu124", packages="python3 python3-venv python3-dev gcc tini ca-certificates"), "package g++"),
        (row("2.5.1", "cu124", suite="bookworm", python="3.13", glibc="2.36"), "Python 3.11"),
        (row("2.8.0", "cu128", machine="aarch64"), "torch28-cu128"),
        (row("2.8.0", "cu124"), "torch28-cu126"),
        (row("2.8.0", "cu128", gpu="v", arch="sm_120", driver="550.90.07"), "driver 570 or newer"),
        (row("2.8.0", "cu128", driver="390.48"), "driver 525.60.13 or newer"),
        (row("2.8.0", "cu126", gpu="v", arch="sm_120", driver="390.48"), "torch28-cu128-v, driver 570 or newer"),
        (row("2.9.0", "cu130", driver="550.90.07"), "torch29-cu129"),
        (row("2.5.1", "cpu", gpu="h", arch="sm_90"), "torch25-cu124-h"),
        (row("2.5.1", "cu118", gpu="m", arch="gfx942"), "torch25-rocm62-m"),
        (row("2.7.1", "rocm6.3", gpu="m", arch="gfx950"), "torch210-rocm70-m"),
        (row("2.5.1", "cu124", requirements="triton torch==2.6"), "without requirement torch==2.6"),
        (row("2.5.1", "rocm6.2", requirements="triton einops"), "without requirement triton"),
    ],
    ids=lambda value: value if isinstance(value, str) else "row",
)
def test_the_least_change_is_offered(target: Target, words: str) -> None:
    """One value where one is wrong; else another accelerator, then another release; the GPU stays what it is."""
    found = nearest(target, KNOWN)
    assert found
    assert legal(found, KNOWN)
    assert told(target, found) == words
    assert found.gpu.arch == target.gpu.arch


def test_the_row_itself_comes_first() -> None:
    """A row with nothing wrong is its own nearest."""
    assert next(candidates(ROW, KNOWN, SMALL)) == ROW
    assert nearest(ROW, KNOWN, SMALL) == ROW
    assert changes(ROW, ROW) == ()


def test_an_old_driver_is_served_by_an_old_cuda() -> None:
    """Before a host gets another driver, the row gets another CUDA: driver 470 runs cu118."""
    found = nearest(row("2.6.0", "cu126", gpu="a", arch="sm_80", driver="470.57.02"), KNOWN)
    assert found
    assert (found.id, found.gpu.driver) == ("torch26-cu118-a", "470.57.02")


def test_no_row_serves_a_gpu_that_nobody_knows() -> None:
    """What can't be mended is not papered over with a row that would not run."""
    assert nearest(row("2.5.1", "rocm6.2", gpu="x", arch="gfx9999"), KNOWN) is None
    assert nearest(row("2.5.1", "cu124", gpu="x", arch="sm_21"), KNOWN) is None


def test_a_row_whose_gpus_are_not_established_is_offered_only_to_itself() -> None:
    """Unknown is no promise: another build must be known to serve the GPU, but a right row is not driven away."""
    found = nearest(row("2.5.1", "rocm6.0", gpu="m", arch="gfx942"), KNOWN)
    assert found
    assert found.accelerator.archs
    same = nearest(row("2.6.0", "rocm6.2.4", gpu="m", arch="gfx942", torchvision="0.16.0"), KNOWN)
    assert same
    assert (same.id, same.release.torchvision) == ("torch26-rocm624-m", "0.21.0")


def test_bases_of_the_family_are_offered() -> None:
    """A C library that is too old needs another base: one that the matrix has."""
    target = row("2.8.0", "cu128", glibc="2.27")
    target = replace(target, base=replace(target.base, id="ancient", default=False))
    found = nearest(target, KNOWN, MATRIX)
    assert found
    assert (found.id, found.base) == ("torch28-cu128", MATRIX.bases["bookworm"])
    older = nearest(target, KNOWN)
    assert older
    assert (older.id, older.base) == ("torch26-cu124-ancient", target.base)


def test_releases_of_the_family_are_offered_as_it_states_them() -> None:
    """The family's own patch and companions, not just any of that minor."""
    found = nearest(row("2.5.9", "cu124", torchvision="0.20.9", torchaudio="2.5.9"), KNOWN, MATRIX)
    assert found
    assert found.release == MATRIX.releases["torch25"]


def test_a_flavour_follows_the_accelerator() -> None:
    """A devel row of another CUDA asks for that CUDA's own toolkit, on a base with the flavour's packages."""
    devel = MATRIX.flavours["devel"]
    plain = MATRIX.targets[0]
    target = replace(
        plain, flavour=devel["cu130"], base=on(plain.base, devel["cu130"]), gpu=replace(plain.gpu, driver="999.1")
    )
    target = replace(
        target, release=MATRIX.releases["torch215"], accelerator=MATRIX.accelerators["cu130"], arch="aarch64"
    )
    rows = [one for one in candidates(target, KNOWN, MATRIX) if one.flavour.id == "devel" and legal(one, KNOWN)]
    assert {one.accelerator.id for one in rows} == {name for name, one in devel.items() if not one.unavailable}
    assert all(one.flavour == devel[one.accelerator.id] for one in rows)
    assert all(set(one.flavour.packages) <= set(one.base.packages) for one in rows)


def test_a_flavour_that_cannot_be_had_is_left_out_first() -> None:
    """Where no other CUDA of the release has it, the row without the flavour is the nearest."""
    target = explain(MATRIX, KNOWN, "torch28-cu126-devel").target
    found = nearest(target, KNOWN, MATRIX)
    assert found
    assert (found.id, found.flavour.id, found.base) == ("torch28-cu126", "runtime", MATRIX.bases["bookworm"])


def test_run_options_are_those_of_the_new_accelerator() -> None:
    """An AMD GPU is let in by the devices that the family states, and not by NVIDIA's option."""
    target = replace(MATRIX.targets[0], gpu=replace(MATRIX.gpus["mi300"], run_options=("--gpus=all", "--shm-size=8g")))
    found = nearest(target, KNOWN, MATRIX)
    assert found
    assert found.gpu.run_options == (*MATRIX.run_options[found.accelerator.id], "--shm-size=8g")


def test_additions_lose_only_what_may_not_be_there() -> None:
    """A user's own list is offered back without the lines that name the trio or another Triton."""
    extra = Extra(id="mine", requirements=("einops", "torch>=2.6", "triton"), file=Path("mine.txt"))
    found = mended(replace(row("2.5.1", "rocm6.2"), extra=extra), KNOWN)
    assert found.extra
    assert found.extra.requirements == ("einops",)


def test_run_options_are_mended_for_the_kind() -> None:
    """What lets the device in is added, what is for another kind and what makes the row lie goes."""
    options = "--device /dev/kfd --env=LD_LIBRARY_PATH=/x --shm-size=8g"
    assert mended(row("2.5.1", "cu124", options=options), KNOWN).gpu.run_options == ("--shm-size=8g", "--gpus=all")
    assert mended(row("2.5.1", "cu124", options="--gpus all --ipc host"), KNOWN).gpu.run_options == (
        *("--gpus", "all", "--ipc", "host"),
    )


def test_a_newer_driver_is_only_as_new_as_needed() -> None:
    """The floor of the CUDA or of the GPU, whichever is higher; what is new enough stays, what is unstated too."""
    blackwell = {"gpu": "b", "arch": "sm_100"}
    assert newer_driver(row("2.8.0", "cu128", driver="390.1", **blackwell), KNOWN).gpu.driver == "570"
    assert newer_driver(row("2.8.0", "cu128", driver="390.1"), KNOWN).gpu.driver == "525.60.13"
    assert newer_driver(row("2.8.0", "cu128", driver="999.1", **blackwell), KNOWN).gpu.driver == "999.1"
    assert newer_driver(row("2.8.0", "cu128", **blackwell), KNOWN).gpu.driver == ""
