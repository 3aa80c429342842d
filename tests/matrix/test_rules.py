from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from tests.kiln import ROOT
from tests.matrix.rows import KNOWN, PACKAGES, ROW, changed, row, told
from torchkiln.matrix import compat, facts, rules, schema
from torchkiln.matrix.mend import mended
from torchkiln.matrix.target import Extra, Flavour, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.matrix.factfile import HazardFact

README = Path(__file__).parents[2] / "torchkiln/matrix/README.md"
UNLISTED = [("gpu-name", "warning"), ("gpu-driver", "note")]
MISNAMED = [("gpu-name", "error"), ("gpu-arch", "note")]
CUDA, ROCM = "--gpus=all --shm-size=2g", "--device=/dev/kfd --device=/dev/dri --shm-size=2g"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param(row("2.5.0", "cu124", torchvision="0.16.0"), [("trio-pairing", "error")], id="vision-0.16"),
        pytest.param(row("2.5.1", "cu124", torchvision="0.21.0"), [("trio-pairing", "error")], id="vision-0.21"),
        pytest.param(row("2.5.1", "cu124", torchaudio="2.11.0"), [("trio-pairing", "error")], id="audio-declares-none"),
        pytest.param(row("2.11.0", "cu130", torchaudio="2.11.0"), [("trio-pairing", "note")], id="audio-by-our-pin"),
        pytest.param(row("2.13.0", "cu130", torchaudio="2.11.1"), [("trio-pairing", "note")], id="audio-accepts"),
        pytest.param(row("2.13.0", "cu130", torchaudio="2.13.0"), [("trio-pairing", "error")], id="audio-never-was"),
        pytest.param(row("2.8.0", "cu124"), [("variant-exists", "error")], id="2.8-cu124"),
        pytest.param(row("2.11.0", "cu134", torchaudio=""), [("variant-exists", "error")], id="2.11-cuda-13.4"),
        pytest.param(row("2.8.0", "cu128", driver="550.90.07"), [("driver", "note")], id="cu128-driver-550"),
        pytest.param(row("2.5.1", "cu124", driver="535.54.03"), [("driver", "note")], id="cu124-driver-535"),
        pytest.param(row("2.5.1", "cu124", driver="550.54.15"), [], id="cu124-full-driver"),
        pytest.param(row("2.5.1", "cu124", driver="470.57.02"), [("driver", "error")], id="cu124-driver-470"),
        pytest.param(row("2.9.0", "cu130", driver="550.90.07"), [("driver", "error")], id="cu130-driver-550"),
        pytest.param(
            row("2.8.0", "cu128", arch="sm_120", driver="550.90.07"),
            [("driver", "note"), ("gpu-driver", "error")],
            id="blackwell-driver-550",
        ),
        pytest.param(row("2.5.1", "cu124", arch="sm_89"), [("gpu-arch", "note")], id="sm_89-by-sm_86"),
        pytest.param(row("2.8.0", "cu128", arch="sm_121"), [*UNLISTED, ("gpu-arch", "note")], id="sm_121-by-sm_120"),
        pytest.param(
            row("2.8.0", "cu128", arch="sm_121", driver="530.30.02"),
            [("gpu-name", "warning"), ("driver", "note"), ("gpu-driver", "error"), ("gpu-arch", "note")],
            id="sm_121-driver-530",
        ),
        pytest.param(
            row("2.8.0", "cu128", arch="sm_103", driver="530.30.02"),
            [("gpu-name", "warning"), ("driver", "note"), ("gpu-driver", "error"), ("gpu-arch", "note")],
            id="sm_103-driver-530",
        ),
        pytest.param(row("2.8.0", "cu128", arch="sm_99"), [*UNLISTED, ("gpu-arch", "note")], id="sm_99-is-not-known"),
        pytest.param(row("2.8.0", "cu128", gpu="rtx5090", arch="sm_89"), MISNAMED, id="rtx5090-is-not-sm_89"),
        pytest.param(
            row("2.8.0", "cu128", gpu="hopper", arch="sm_100"), [("gpu-name", "error")], id="hopper-is-not-sm_100"
        ),
        pytest.param(row("2.8.0", "cu128", gpu="a100", arch="sm_86"), [("gpu-name", "error")], id="a100-is-not-sm_86"),
        pytest.param(row("2.8.0", "cu128", gpu="blackwell", arch="sm_100"), [], id="blackwell"),
        pytest.param(row("2.5.1", "cu124", arch="sm_90"), [], id="sm_90"),
        pytest.param(row("2.8.0", "cu126", arch="sm_120"), [("gpu-arch", "error")], id="sm_120-cu126"),
        pytest.param(
            row("2.5.1", "cu124", arch="sm_60"), [("compile-applies", "note"), ("bfloat16", "note")], id="p100"
        ),
        pytest.param(row("2.5.1", "cu124", arch="sm_75"), [("bfloat16", "note")], id="t4"),
        pytest.param(row("2.5.1", "rocm6.2", arch="gfx1102"), [("gpu-arch", "error")], id="gfx1102"),
        pytest.param(row("2.8.0", "rocm6.4", arch="gfx1102"), [], id="gfx1102-later"),
        pytest.param(row("2.5.1", "rocm6.2", arch="gfx942"), [], id="mi300"),
        pytest.param(
            row("2.5.1", "rocm6.2", arch="gfx90c"),
            [("gpu-name", "warning"), ("gpu-arch", "error")],
            id="gfx90c-is-not-gfx90a",
        ),
        pytest.param(row("2.6.0", "rocm6.2.4", arch="gfx942"), [("gpu-arch", "note")], id="rocm-unknown"),
        pytest.param(
            row("2.6.0", "rocm6.2.4", arch="gfx950"),
            [("gpu-arch", "note"), ("gpu-toolkit", "error")],
            id="mi350-too-early",
        ),
        pytest.param(
            row("2.8.0", "rocm6.4", arch="gfx950"), [("gpu-arch", "error"), ("gpu-toolkit", "error")], id="mi350-on-6.4"
        ),
        pytest.param(row("2.10.0", "rocm7.0", arch="gfx950"), [], id="mi350"),
        pytest.param(row("2.5.1", "rocm6.2", arch="gfx942", driver="6.3.1"), [], id="amdgpu-tested"),
        pytest.param(
            row("2.5.1", "rocm6.2", arch="gfx942", driver="5.7.3"), [("kernel-driver", "warning")], id="amdgpu-old"
        ),
        pytest.param(
            row("2.8.0", "rocm6.4", arch="gfx942", driver="6.4.1"), [("kernel-driver", "note")], id="amdgpu-unknown"
        ),
        pytest.param(row("2.8.0", "rocm6.4", arch="gfx942", driver="30.30.1"), [], id="amdgpu-30.30"),
        pytest.param(
            row("2.14.1", "rocm7.2", arch="gfx942", driver="99.1"), [("kernel-driver", "note")], id="amdgpu-newer"
        ),
        pytest.param(row("2.5.1", "cu124", arch="gfx942"), [("gpu-arch", "error")], id="amd-on-cuda"),
        pytest.param(row("2.5.1", "rocm6.2", arch="sm_90"), [("gpu-arch", "error")], id="nvidia-on-rocm"),
        pytest.param(row("2.5.1", "cpu", arch="sm_90"), [("gpu-arch", "error")], id="gpu-on-cpu"),
        pytest.param(
            row("2.4.1", "cu121", python="3.13"),
            [("python-range", "error"), ("triton-python", "warning")],
            id="python-3.13-on-2.4",
        ),
        pytest.param(row("2.5.1", "cu124", python="3.13"), [("triton-python", "warning")], id="no-triton-on-3.13"),
        pytest.param(row("2.6.0", "cu124", python="3.13"), [], id="triton-on-3.13"),
        pytest.param(row("2.15.0", "cu132", python="3.10"), [("python-range", "error")], id="python-3.10-on-2.15"),
        pytest.param(row("2.2.2", "cu121", companions="numpy>=1.26"), [("numpy-bound", "error")], id="numpy-2-on-2.2"),
        pytest.param(row("2.2.2", "cu121", companions="pip"), [("numpy-bound", "error")], id="numpy-unbound-on-2.2"),
        pytest.param(row("2.2.2", "cu121", companions="numpy<2"), [], id="numpy-bound-on-2.2"),
        pytest.param(row("2.5.1", "cu124", companions="numpy"), [("setuptools-needed", "error")], id="no-setuptools"),
        pytest.param(row("2.5.1", "cu124", companions="numpy", python="3.12"), [], id="setuptools-declared-on-3.12"),
        pytest.param(row("2.8.0", "cu128", glibc="2.27"), [("glibc-floor", "error")], id="glibc-2.27-on-2.8"),
        pytest.param(row("2.6.0", "cu126", glibc="2.27"), [("glibc-floor", "error")], id="glibc-2.27-index-2.6"),
        pytest.param(row("2.6.0", "cu124", glibc="2.27"), [], id="glibc-2.27-on-2.6-default"),
        pytest.param(row("2.5.9", "cu124"), [("known-torch", "error")], id="no-such-torch"),
        pytest.param(row("2.8.0", "cu128", machine="aarch64"), [("machine", "error")], id="arm64"),
        pytest.param(row("2.5.1", "cu124", requirements="torchaudio>=2"), [("trio-once", "error")], id="audio-beside"),
        pytest.param(row("2.5.1", "cu124", requirements="torch==2.6"), [("trio-once", "error")], id="another-torch"),
        pytest.param(
            row("2.5.1", "rocm6.2", requirements="triton"), [("triton-flavour", "error")], id="triton-on-rocm"
        ),
        pytest.param(row("2.5.1", "rocm6.2", requirements="pytorch-triton-rocm==3.1.0"), [], id="triton-of-rocm"),
        pytest.param(
            row("2.5.1", "cu124", requirements="pytorch-triton-rocm"),
            [("triton-flavour", "error")],
            id="rocm-triton-on-cuda",
        ),
        pytest.param(row("2.5.1", "cpu", requirements="triton"), [], id="triton-on-cpu"),
        pytest.param(
            row("2.5.1", "cu124", requirements="nvidia-cuda-nvcc-cu12==12.1.105"),
            [("cuda-packages", "error")],
            id="nvcc-12.1",
        ),
        pytest.param(row("2.5.1", "cu124", requirements="nvidia-cuda-nvcc-cu12==12.4.*"), [], id="nvcc-12.4"),
        pytest.param(row("2.9.0", "cu130", requirements="nvidia-cuda-nvcc==13.0.*"), [], id="nvcc-13.0"),
        pytest.param(
            row("2.9.0", "cu130", requirements="nvidia-cuda-nvcc==13.2.*"), [("cuda-packages", "error")], id="nvcc-13.2"
        ),
        pytest.param(
            row("2.5.1", "cu118", requirements="nvidia-cudnn-cu12"),
            [("cuda-packages", "error")],
            id="cudnn-of-another-major",
        ),
        pytest.param(
            row("2.5.1", "cpu", requirements="nvidia-cublas-cu12"), [("cuda-packages", "error")], id="cuda-on-cpu"
        ),
        pytest.param(
            row("2.5.1", "cu124", packages=" ".join((*PACKAGES, "cuda-compat-12-8"))),
            [("driver-packages", "error")],
            id="cuda-compatibility-package",
        ),
        pytest.param(
            row("2.5.1", "cu124", packages=" ".join((*PACKAGES, "libcuda1"))),
            [("driver-packages", "error")],
            id="libcuda",
        ),
        pytest.param(row("2.5.1", "cu124", options="--shm-size=2g"), [("run-options", "warning")], id="no-gpu-let-in"),
        pytest.param(row("2.5.1", "cu124", options="--gpus all --ipc host"), [], id="options-in-two-words"),
        pytest.param(row("2.5.1", "cu124", options="--gpus=all"), [("run-options", "warning")], id="64-mb-of-shm"),
        pytest.param(
            row("2.5.1", "cu124", options="--gpus=all --shm-size=2g --shm-size=8g"),
            [("run-options", "warning")],
            id="shared-memory-twice",
        ),
        pytest.param(row("2.5.1", "cpu", options=CUDA), [("run-options", "warning")], id="gpus-for-cpu"),
        pytest.param(
            row("2.5.1", "rocm6.2", options="--device=/dev/dri --shm-size=2g"),
            [("run-options", "warning")],
            id="no-kfd",
        ),
    ],
)
def test_what_is_said_about_a_row(target: Target, expected: list[tuple[str, str]]) -> None:
    """Each wrong row is refused by its own rule, each working one is not; a note explains what is peculiar."""
    assert told(target) == expected


@pytest.mark.parametrize("hazard", KNOWN.hazards, ids=lambda hazard: hazard.has.strip("-"))
def test_a_run_option_that_makes_a_row_lie_is_warned_of(hazard: HazardFact) -> None:
    """A pretended GPU, shadowed libraries, a silenced compiler: said, with what to use instead."""
    option = hazard.has if hazard.has.startswith("--") else f"--env={hazard.has}=1"
    (found,) = rules.check(row("2.5.1", "rocm6.2", options=f"{ROCM} {option}"), KNOWN)
    assert (found.rule, found.severity, found.nearest) == ("run-hazards", "warning", hazard.instead)
    assert found.message == f"run option {option}: {hazard.why}"


V100 = {  # facts: arch_notes_cuda
    **dict.fromkeys([("2.5.1", "cu118"), ("2.5.1", "cu121"), ("2.5.1", "cu124"), ("2.6.0", "cu126")], True),
    **dict.fromkeys([("2.7.1", "cu126"), ("2.8.0", "cu126"), ("2.11.0", "cu126"), ("2.15.0", "cu126")], True),
    **dict.fromkeys([("2.8.0", "cu128"), ("2.9.1", "cu128"), ("2.10.0", "cu128"), ("2.8.0", "cu129")], True),
    **dict.fromkeys([("2.7.1", "cu128"), ("2.11.0", "cu128"), ("2.11.0", "cu129")], False),
    **dict.fromkeys([("2.9.1", "cu130"), ("2.13.0", "cu130"), ("2.13.0", "cu132"), ("2.15.0", "cu132")], False),
}


@pytest.mark.parametrize(("torch", "variant"), V100)
def test_volta_left_and_came_back(torch: str, variant: str) -> None:
    """A V100 is served by cu126 of every release and by cu128 of 2.8 to 2.10 only; what it is told is not the same."""
    target = row(torch, variant, arch="sm_70", torchaudio="")
    refused = [rule for rule, severity in told(target) if severity == "error"]
    assert refused == ([] if V100[torch, variant] else ["gpu-arch"])


def test_a_build_with_suffixed_architectures_only_is_exact() -> None:
    """A build that lists only sm_90a runs on neither sm_90 nor sm_100; gfx90c is another GPU than gfx90a."""
    assert not rules.runs_on("sm_100", ["sm_90a"])
    assert not rules.runs_on("sm_90", ["sm_90a"])
    assert rules.runs_on("sm_90a", ["sm_90a"])
    assert rules.runs_on("sm_121", ["sm_120"])
    assert rules.runs_on("sm_121", ["compute_90"])
    assert not rules.runs_on("sm_80", ["sm_86"])
    assert not rules.runs_on("gfx90c", ["gfx90a", "gfx900"])


def test_a_gpu_served_by_ptx_alone_needs_the_full_driver() -> None:
    """Minor-version compatibility runs cubins only: what must be compiled from PTX does not start."""
    target = row("2.7.1", "cu128", arch="sm_130", driver="550.90.07")
    assert ("ptx-driver", "error") in told(target)
    assert ("ptx-driver", "error") not in told(row("2.7.1", "cu128", arch="sm_130", driver="570.26"))
    assert ("ptx-driver", "error") not in told(row("2.7.1", "cu128", arch="sm_120", driver="550.90.07"))


@pytest.mark.parametrize(
    ("arch", "floor"), [("sm_120", "570"), ("sm_121", "570"), ("sm_100", "570"), ("sm_103", "570")]
)
def test_a_gpu_that_is_not_listed_needs_the_driver_of_the_one_below(arch: str, floor: str) -> None:
    """The floor of the nearest listed architecture of the same major holds; with none of its major, none is known."""
    assert facts.gpu_driver(KNOWN, arch) == floor
    assert [facts.gpu_driver(KNOWN, other) for other in ("", "sm_87", "sm_130", "gfx942", "odd")] == [""] * 5
    (*_, found) = (one for one in rules.check(row("2.8.0", "cu128", arch="sm_130"), KNOWN) if one.rule == "gpu-driver")
    assert (found.severity, found.message) == ("note", "the oldest driver that knows sm_130 is not established")


def test_a_gpu_with_the_arch_of_another_is_offered_with_its_own() -> None:
    """The facts know what an rtx5090 is, and nothing about the row needs to change but that."""
    wrong = row("2.8.0", "cu128", gpu="rtx5090", arch="sm_89")
    (found,) = (one for one in compat.lint(wrong, KNOWN) if one.severity == "error")
    assert (found.message, found.nearest) == ("rtx5090 is sm_120, the row says sm_89", "arch: sm_120")
    assert found.row
    assert (found.row.id, found.row.gpu.arch, found.row.driver_floor) == (wrong.id, "sm_120", "570")


def test_driver_findings_name_the_minimum_and_what_is_lost() -> None:
    """A driver that is too old is refused with the oldest that works; an old enough one says what is lost."""
    (refused,) = rules.check(row("2.9.0", "cu130", driver="550.90.07"), KNOWN)
    assert "at least 580.65.06" in refused.message
    (allowed,) = rules.check(row("2.8.0", "cu128", driver="550.90.07"), KNOWN)
    assert "minor-version compatibility" in allowed.message
    assert "PTX made by a newer toolkit does not compile" in allowed.message
    assert "570.124.06" in allowed.message


def test_an_addition_may_not_name_the_trio() -> None:
    """A user's requirements file that asks for another torch is refused by name, before any resolver is asked."""
    extra = Extra(id="mine", requirements=("einops", "torch>=2.6"), file=Path("mine.txt"))
    (found,) = rules.check(replace(ROW, extra=extra), KNOWN)
    assert (found.rule, found.severity) == ("trio-once", "error")
    assert "torch>=2.6" in found.message


def test_a_flavour_that_cannot_be_had_is_refused_with_its_reason() -> None:
    """Where the accelerator has no toolkit wheels a devel row says so instead of building something else."""
    (found,) = rules.check(replace(ROW, flavour=Flavour(id="devel", unavailable="it is stated for cu126 only")), KNOWN)
    assert (found.rule, found.severity) == ("flavour-available", "error")
    assert "it is stated for cu126 only" in found.evidence


@pytest.mark.parametrize(("torch", "variant", "wheel"), [("2.7.1", "cu118", "cu11"), ("2.8.0", "cu126", "cu12")])
def test_devel_says_what_the_wheels_of_a_compiler_lack(torch: str, variant: str, wheel: str) -> None:
    """CUDA 11 and 12 have no nvcc on PyPI: the refusal names the wheel that was looked into."""
    devel = Flavour(id="devel", unavailable="it is stated for cu130 only")
    found = [one for one in rules.check(replace(row(torch, variant), flavour=devel), KNOWN) if one.severity == "error"]
    assert [one.rule for one in found] == ["flavour-available"]
    assert f"nvidia-cuda-nvcc-{wheel} holds ptxas, libnvvm and libdevice only, no nvcc" in found[0].evidence


def test_devel_is_stated_exactly_where_the_wheels_hold_a_compiler() -> None:
    """What matrix.yaml adds for devel agrees with what was found in the wheels, for every CUDA of the family."""
    family = schema.load(ROOT / "matrix.yaml")
    stated = {accelerator for accelerator, one in family.flavours["devel"].items() if not one.unavailable}
    cuda = [one for one in family.accelerators.values() if one.kind == "cuda"]
    facts_of = {one.id: facts.toolchain(KNOWN, one.version) for one in cuda}
    assert all(facts_of.values())
    assert stated == {name for name, one in facts_of.items() if one and one.nvcc}


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("g++", "Inductor compiles"),
        ("gcc", "Triton compiles"),
        ("python3.11-dev", "Python.h"),
        ("python3-venv", "python3 -m venv"),
        ("tini", "entrypoint"),
        ("ca-certificates", "https"),
    ],
)
def test_a_base_without_what_images_need_is_refused(package: str, why: str) -> None:
    """A package that was edited away is an error that names it and what it is for."""
    left = tuple(name for name in ROW.base.packages if name not in {package, "g++" if package == "gcc" else package})
    target = replace(ROW, base=replace(ROW.base, packages=left))
    found = [one for one in rules.check(target, KNOWN) if one.rule == "toolchain" and package in one.nearest]
    assert [finding.severity for finding in found] == ["error"]
    assert f"no package {package}: " in found[0].message
    assert why in found[0].message


@pytest.mark.parametrize(
    ("package", "rule"),
    [
        ("cuda-toolkit-12-1", "toolkit-packages"),
        ("cuda-12-1", "toolkit-packages"),
        ("cuda-nvcc-12-8", "toolkit-packages"),
        ("cuda-toolkit", "toolkit-packages"),
        ("nvidia-cuda-toolkit", "toolkit-packages"),
        ("libcudnn9-cuda-12", "toolkit-packages"),
        ("libcudart12", "toolkit-packages"),
        ("libcublas-12-1", "toolkit-packages"),
        ("libnccl2", "toolkit-packages"),
        ("rocm-hip-runtime", "toolkit-packages"),
        ("libamdhip64-5", "toolkit-packages"),
        ("libhsa-runtime64-1", "toolkit-packages"),
        ("librocblas0", "toolkit-packages"),
        ("hipcc", "toolkit-packages"),
        ("libtorch-dev", "toolkit-packages"),
        ("libtorch2.6", "toolkit-packages"),
        ("python3-torch", "toolkit-packages"),
        ("python3-torchvision", "toolkit-packages"),
        ("libtorrent-dev", ""),
        ("libhiredis-dev", ""),
        ("librocksdb-dev", ""),
        ("cuda-toolkit-12-4", ""),
        ("libcublas-dev-12-4", ""),
        ("cuda-keyring", ""),
        ("libcurl4", ""),
        ("libcups2", ""),
        ("cuda-compat-12-4", "driver-packages"),
        ("cuda-drivers-550", "driver-packages"),
        ("nvidia-driver-550", "driver-packages"),
        ("libnvidia-compute-550", "driver-packages"),
        ("nvidia-utils-550", "driver-packages"),
        ("amdgpu-dkms", "driver-packages"),
        ("nvidia-container-toolkit", ""),
    ],
)
def test_a_package_of_another_cuda_or_of_a_driver_is_seen(package: str, rule: str) -> None:
    """What would shadow the wheels' libraries is warned of, what belongs to the host refused, the rest let pass."""
    target = row("2.5.1", "cu124", packages=" ".join((*PACKAGES, package)))
    assert [found for found, _ in told(target)] == ([rule] if rule else [])
    assert told(mended(target, KNOWN)) == []


def test_packages_that_bring_the_same_will_do() -> None:
    """build-essential holds both compilers; a package with another Python's headers is none."""
    same = ("build-essential", "libpython3.11-dev", "python3-full", "tini", "ca-certificates")
    assert told(replace(ROW, base=replace(ROW.base, packages=same))) == []
    wrong = replace(ROW, base=replace(ROW.base, python="3.12"))
    assert told(wrong) == [("base-python", "error")]
    other = tuple(name.replace("3.11-dev", "3.12-dev") for name in ROW.base.packages)
    assert told(replace(ROW, base=replace(ROW.base, packages=other))) == [("toolchain", "error")]


def test_what_a_pulled_image_holds_is_not_judged_by_packages() -> None:
    """Only bases that we assemble state packages; of others nothing is known before they are there."""
    assert told(replace(ROW, base=replace(ROW.base, kind="registry", suite="", packages=()))) == []


@pytest.mark.parametrize(
    ("suite", "python", "glibc", "nearest"),
    [
        ("bookworm", "3.12", "2.36", {"python: '3.11'"}),
        ("trixie", "3.11", "2.36", {"python: '3.13'", "glibc: '2.41'"}),
        ("jammy", "3.10", "2.36", {"glibc: '2.35'"}),
        ("noble", "3.12", "2.39", set()),
        ("custom", "3.12", "2.50", {""}),
    ],
)
def test_a_base_says_what_its_suite_has(suite: str, python: str, glibc: str, nearest: set[str]) -> None:
    """Another Python or C library than the archive's is an error with the right one; unknown suites are not judged."""
    found = list(rules.check(row("2.8.0", "cu128", suite=suite, python=python, glibc=glibc), KNOWN))
    assert {finding.nearest for finding in found if finding.rule.startswith("base-")} == nearest
    severities = {finding.severity for finding in found if finding.rule.startswith("base-")}
    assert severities == ({"note"} if suite == "custom" else {"error"} if nearest else set())


def good() -> Iterator[tuple[Target, str, str]]:
    """A row of everything that the facts call good, with each GPU that it holds and each driver that just does."""
    for release in KNOWN.releases:
        for variant in sorted({*facts.variants(KNOWN, release.torch)} - {"xpu"}):
            plain = row(release.torch, variant)
            for arch in ("", *(arch for arch in plain.accelerator.archs if not arch.startswith("compute_"))):
                for driver in sufficient(plain, arch):
                    yield plain, arch, driver


def sufficient(plain: Target, arch: str) -> set[str]:
    """No stated driver, the oldest that does, and the newest."""
    if plain.accelerator.kind == "rocm":
        tested = facts.kernel_drivers(KNOWN, plain.accelerator.version)
        return {"", *(branch.replace("x", "1") for kmd in tested for branch in kmd.split(", "))}
    floors = [floor for floor in (plain.accelerator.driver_floor, facts.gpu_driver(KNOWN, arch)) if floor]
    return {"", max(floors, key=Version), "999.1"} if floors else {""}


def test_no_row_that_is_fine_is_refused_or_warned_of() -> None:
    """Every release with every variant, GPU it holds, driver that does and suite's Python that it has Triton for."""
    suites = [(suite.suite, suite.python, suite.glibc) for suite in KNOWN.suites]
    seen = 0
    for plain, arch, driver in good():
        release = facts.release(KNOWN, plain.release.torch)
        assert release
        for suite, python, glibc in suites:
            target = changed(plain, arch=arch, driver=driver, suite=suite, python=python, glibc=glibc)
            found = told(target)
            if python in release.python and ("triton-python", "warning") not in found:
                assert [one for one in found if one[1] != "note"] == [], target
                seen += 1
    assert seen > 5000


@pytest.mark.parametrize(("torch", "python"), [("2.2.1", "3.12"), ("2.4.1", "3.13"), ("2.5.1", "3.13")])
def test_triton_is_missing_exactly_where_its_marker_says(torch: str, python: str) -> None:
    """The only warning that a listed Python can get is that torch leaves Triton out there."""
    assert ("triton-python", "warning") in told(row(torch, "cu121", python=python))
    assert ("triton-python", "warning") not in told(row(torch, "cu121", python="3.11"))
    assert ("triton-python", "warning") not in told(row(torch, "cpu", python=python))


def test_every_rule_has_its_name_and_a_promise() -> None:
    """Findings can be traced to a rule by name, and the README says in a sentence what each holds."""
    assert len(set(rules.NAMES)) == len(rules.RULES)
    listed = re.findall(r"^\| `(.+?)` \| (.+) \|$", README.read_text(), re.MULTILINE)
    stated = [(rule.__doc__ or "").partition("\n")[0] for rule in rules.RULES]
    assert listed == list(zip(rules.NAMES, stated, strict=True))
