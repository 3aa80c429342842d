"""Pure decisions inside checks, on stand-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.matrix.rows import KNOWN, row
from torchkiln.matrix import rules
from validate import doctor, proof
from validate.checks import (
    compile_random_uid,
    gpu_arch,
    gpu_compile,
    gpu_driver,
    gpu_speed,
    lock_installed,
    lock_record,
    version_accelerator,
)
from validate.expect import Expect

if TYPE_CHECKING:
    from pathlib import Path

COUNTED: dict[str, Any] = {
    "suppress_errors": False,
    "graphs": 1,
    "graph_breaks": {},
    "generated_kernels": 1,
    "compiled_calls": 2,
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"suppress_errors": True}, "suppress_errors"),
        ({"graphs": 2}, "2 graphs"),
        ({"graphs": 0}, "0 graphs"),
        ({"graph_breaks": {"print": 1}}, "graph breaks: print"),
        ({"generated_kernels": 0}, "no kernel"),
        ({"compiled_calls": 1}, "ran 1 times"),
    ],
)
def test_fallback_is_a_problem(changed: dict[str, Any], said: str) -> None:
    """Each way of not running compiled code is named, right numbers or not."""
    assert proof.problems(COUNTED) == []
    assert said in "; ".join(proof.problems({**COUNTED, **changed}))


@pytest.mark.parametrize(
    ("archs", "device", "served"),
    [
        ("sm_80 sm_86 sm_90", "sm_89", True),  # a 4090D runs sm_86 code
        ("sm_80 sm_86", "sm_90", False),
        ("sm_90", "sm_89", False),
        ("sm_90a", "sm_90", False),
        ("sm_120", "sm_120", True),
        ("sm_90 compute_90", "sm_121", True),  # translated from PTX at first use
        ("sm_90 compute_120", "sm_100", False),
        ("gfx90a gfx942", "gfx942", True),
        ("gfx90a", "gfx942", False),
    ],
)
def test_architecture_rule(archs: str, device: str, served: bool) -> None:  # noqa: FBT001  a table of cases
    """Same major and lower or equal minor, or PTX; suffixes and AMD's names exactly; lint says the same."""
    assert gpu_arch.serves(archs.split(), device) is served
    assert rules.runs_on(device, archs.split()) is served


@pytest.mark.parametrize(
    ("gpu", "promised", "archs", "devices", "status"),
    [
        ("sm_89", "sm_86", "sm_80 sm_86", "sm_89", "pass"),
        ("sm_89", "sm_86", "sm_80 sm_86", "sm_90", "environment"),  # another GPU than the row's
        ("sm_89", "sm_86", "sm_80 sm_86", "sm_86", "environment"),
        ("sm_89", "sm_86", "sm_90", "sm_89", "fail"),  # the row's own GPU
        ("sm_89", "sm_86", "sm_80 sm_86", "sm_89 sm_90", "environment"),
        ("", "sm_86", "sm_86", "sm_90", "environment"),  # the row's wheels were never said to serve it
        ("", "sm_90", "sm_86", "sm_90", "fail"),
        ("", "", "sm_86", "sm_90", "fail"),
        ("gfx942", "gfx942", "gfx90a gfx942", "gfx90a", "environment"),
    ],
)
def test_another_gpu_is_the_hosts_fault(gpu: str, promised: str, archs: str, devices: str, status: str) -> None:
    """The image fails only on a GPU that its row is for."""
    row = Expect(gpu_arch=gpu, archs=tuple(promised.split()))
    assert gpu_arch.judged(row, archs.split(), devices.split(), 24 * 10**9).status == status


def test_a_smaller_card_of_the_same_kind_is_the_hosts() -> None:
    """An L40S and an RTX 4090 have one architecture; a row for 48 GB is not proven on 24."""
    row = Expect(gpu_arch="sm_89", archs=("sm_86",), gpu_memory_gb=48)
    assert gpu_arch.judged(row, ["sm_86"], ["sm_89"], 25_400_000_000).status == "environment"
    assert gpu_arch.judged(row, ["sm_86"], ["sm_89"], 47_700_000_000).status == "pass"


def test_driver_versions_are_compared_as_numbers() -> None:
    """550.54.14 lies below 550.90.07 and 1000.1, and above nothing at all."""
    assert gpu_driver.parts("550.54.14") < gpu_driver.parts("550.90.07") < gpu_driver.parts("1000.1")
    assert gpu_driver.parts("") < gpu_driver.parts("550")


@pytest.mark.parametrize("arch", ["", "sm_60", "sm_61", "sm_70", "sm_89", "sm_120", "gfx942"])
def test_what_compiles_is_asked_only_where_lint_says_it_applies(arch: str) -> None:
    """A P100 row requires neither a compiled GPU function nor its speed; every other GPU row requires both."""
    target = row("2.10.0", "rocm7.1" if arch.startswith("gfx") else "cu126", arch=arch)
    noted = "compile-applies" in {finding.rule for finding in rules.check(target, KNOWN)}
    expect = Expect(kind=target.accelerator.kind, gpu_arch=arch)
    assert noted == (arch in {"sm_60", "sm_61"})
    assert [check.applies(expect) for check in (gpu_compile, gpu_speed)] == [not noted] * 2
    assert not gpu_compile.applies(Expect(kind="cpu"))


def test_toolkit_may_be_stated_in_part() -> None:
    """The row says 6.2, torch says 6.2.41133; but 12.1 is not 12.10, and nothing is not something."""
    assert version_accelerator.same("6.2.41133-dd7f95766", "6.2")
    assert not version_accelerator.same("12.10", "12.1")
    assert not version_accelerator.same("12.4", "")


def test_installed_set_is_compared_both_ways() -> None:
    """Missing, extra and other versions are named; a local suffix counts only where the lock states one."""
    found = {"torch": "2.5.1+cu124", "extra": "1.0", "numpy": "2.0"}
    wanted = {"torch": "2.5.1", "numpy": "1.0", "triton": "3.1"}
    said = ["extra 1.0 is not in the lock", "numpy 2.0, the lock says 1.0", "triton 3.1 is missing"]
    assert lock_installed.differences(found, wanted) == said
    assert not lock_installed.same("2.5.1+cu124", "2.5.1+cpu")


def test_record_sees_a_changed_file(tmp_path: Path) -> None:
    """Size first, then hash; a line without hash says only that the file is there."""
    path = tmp_path / "module.py"
    path.write_text("x = 1\n")
    good = "sha256=" + lock_record.digest(path, "sha256")
    assert lock_record.difference(path, good, "6", whole=False) == ""
    assert lock_record.difference(path, "", "", whole=False) == ""
    assert "RECORD says 7" in lock_record.difference(path, good, "7", whole=False)
    path.write_text("x = 2\n")
    assert "another hash" in lock_record.difference(path, good, "6", whole=False)
    path.unlink()
    assert lock_record.difference(path, good, "6", whole=False) == "is missing"


def _facts(shm: int | None) -> dict[str, Any]:
    return {"shm": {"total_bytes": shm}, "devices": []}


def test_doctor_knows_a_variable_that_nothing_reads() -> None:
    """TORCH_COMPILE_CACHE_DIR is widely documented and read by nothing."""
    (advice,) = doctor.surroundings({"TORCH_COMPILE_CACHE_DIR": "/x"}, _facts(None), Expect())
    assert "reads no such variable" in advice.what
    assert "TORCHINDUCTOR_CACHE_DIR" in advice.do


def test_doctor_tells_a_gpu_row_how_to_get_its_gpu() -> None:
    """Little shared memory and a hidden GPU, each with what to do."""
    found = {advice.what: advice.do for advice in doctor.surroundings({}, _facts(64 << 20), Expect(kind="cuda"))}
    assert any("64 MB" in what and "--shm-size" in do for what, do in found.items())
    assert any("no GPU" in what and "--gpus all" in do for what, do in found.items())


@pytest.mark.parametrize(
    ("environ", "name", "known"),
    [
        ({}, "", ""),
        ({"HOME": "/"}, "", ""),  # Docker's runtime sets it where the image and the caller are silent
        ({"HOME": "", "USER": ""}, "", ""),
        ({"HOME": "/home/torch"}, "", "HOME=/home/torch"),
        ({"HOME": "/", "LOGNAME": "me"}, "", "LOGNAME=me"),
        ({"LOGNAME": "uid_1042"}, "", ""),  # the image's own name for it
        ({}, "torch", "the passwd row of torch"),
    ],
)
def test_unknown_user_is_told_from_a_known_one(environ: dict[str, str], name: str, known: str) -> None:
    """No passwd row, no name, and no home but the root folder; whatever says more is named."""
    assert compile_random_uid.known_by(environ, name) == known


@pytest.mark.parametrize(
    ("version", "status"), [("6.0.5", "pass"), ("6.12.12", "pass"), ("5.18.13", "environment"), ("", "pass")]
)
def test_an_old_amdgpu_is_the_hosts(version: str, status: str) -> None:
    """The kernel's own driver has no version, and is not judged by one."""
    assert gpu_driver.amdgpu(Expect(kind="rocm", driver_floor="6.0"), version).status == status
