from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchkiln.errors import MatrixError
from torchkiln.matrix import compat, facts, rules, schema
from torchkiln.matrix.compat import accelerator, lint

if TYPE_CHECKING:
    from torchkiln.matrix.target import Target

KNOWN = facts.read()
MATRIX = schema.load(Path(__file__).parents[2] / "matrix.yaml")
ROW = MATRIX.targets[0]


def row(torch: str, variant: str, **changes: str) -> Target:
    """A row as the matrix would make it: its own trio, completed from the facts; then changed."""
    pair = facts.release(KNOWN, torch)
    stated = accelerator(variant)
    assert stated
    numpy = "numpy<2" if facts.covers("2.0 to 2.2", torch) else "numpy>=2"
    release = replace(
        ROW.release,
        id="torch" + "".join(torch.split(".")[:2]),
        torch=torch,
        torchvision=changes.get("torchvision", pair.torchvision if pair else ""),
        torchaudio=changes.get("torchaudio", pair.torchaudio if pair else ""),
        companions=tuple(changes.get("companions", f"{numpy} setuptools>=70").split()),
    )
    arch, driver = changes.get("arch", ""), changes.get("driver", "")
    gpu = replace(ROW.gpu, id=changes.get("gpu", "generic"), arch=arch, driver=driver)
    changed = changes.keys() & {"python", "glibc"}  # as in no suite that the facts know
    suite = changes.get("suite", "custom" if changed else ROW.base.suite)
    packages = tuple("python3-dev" if name == "python3.11-dev" else name for name in ROW.base.packages)
    python, glibc = changes.get("python", "3.11"), changes.get("glibc", "2.36")
    base = replace(ROW.base, suite=suite, python=python, glibc=glibc, packages=packages)
    completed = facts.complete(KNOWN, stated, torch)
    return replace(ROW, release=release, accelerator=completed, gpu=gpu, base=base)


def told(target: Target) -> list[tuple[str, str]]:
    """(rule, severity) of every finding."""
    return [(finding.rule, finding.severity) for finding in lint(target, KNOWN)]


@pytest.mark.parametrize("target", MATRIX.targets, ids=lambda target: target.id)
def test_rows_of_this_repository_are_fine(target: Target) -> None:
    """No row that can be built has an error or a warning."""
    assert [finding for finding in lint(target, KNOWN) if finding.severity != "note"] == []
    compat.refuse(target, KNOWN)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param(row("2.5.0", "cu124", torchvision="0.16.0"), [("trio-pairing", "error")], id="vision-0.16"),
        pytest.param(row("2.5.1", "cu124", torchvision="0.21.0"), [("trio-pairing", "error")], id="vision-0.21"),
        pytest.param(row("2.5.1", "cu124", torchaudio="2.11.0"), [("trio-pairing", "error")], id="audio-declares-none"),
        pytest.param(row("2.13.0", "cu130", torchaudio="2.11.1"), [("trio-pairing", "note")], id="audio-accepts"),
        pytest.param(row("2.13.0", "cu130", torchaudio="2.13.0"), [("trio-pairing", "error")], id="audio-never-was"),
        pytest.param(row("2.8.0", "cu124"), [("variant-exists", "error")], id="2.8-cu124"),
        pytest.param(row("2.11.0", "cu134"), [("variant-exists", "error")], id="2.11-cuda-13.4"),
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
        pytest.param(row("2.8.0", "cu128", arch="sm_121"), [("gpu-arch", "note")], id="sm_121-by-sm_120"),
        pytest.param(row("2.5.1", "cu124", arch="sm_90"), [], id="sm_90"),
        pytest.param(row("2.8.0", "cu126", arch="sm_120"), [("gpu-arch", "error")], id="sm_120-cu126"),
        pytest.param(row("2.7.1", "cu128", arch="sm_70"), [("gpu-arch", "error")], id="v100-gone-in-2.7"),
        pytest.param(row("2.8.0", "cu128", arch="sm_70"), [], id="v100-back-in-2.8"),
        pytest.param(row("2.11.0", "cu128", arch="sm_70"), [("gpu-arch", "error")], id="v100-gone-in-2.11"),
        pytest.param(row("2.5.1", "cu124", arch="sm_60"), [("compile-applies", "note")], id="p100-compile"),
        pytest.param(row("2.5.1", "rocm6.2", arch="gfx1102"), [("gpu-arch", "error")], id="gfx1102"),
        pytest.param(row("2.5.1", "rocm6.2", arch="gfx942"), [], id="mi300"),
        pytest.param(row("2.6.0", "rocm6.2.4", arch="gfx942"), [("gpu-arch", "note")], id="rocm-unknown"),
        pytest.param(row("2.5.1", "cu124", arch="gfx942"), [("gpu-arch", "error")], id="amd-on-cuda"),
        pytest.param(row("2.5.1", "cpu", arch="sm_90"), [("gpu-arch", "error")], id="gpu-on-cpu"),
        pytest.param(
            row("2.4.1", "cu121", python="3.13"),
            [("python-range", "error"), ("triton-python", "warning")],
            id="python-3.13-on-2.4",
        ),
        pytest.param(row("2.5.1", "cu124", python="3.13"), [("triton-python", "warning")], id="no-triton-on-3.13"),
        pytest.param(row("2.2.2", "cu121", companions="numpy>=1.26"), [("numpy-bound", "error")], id="numpy-2-on-2.2"),
        pytest.param(row("2.2.2", "cu121", companions="pip"), [("numpy-bound", "error")], id="numpy-unbound-on-2.2"),
        pytest.param(row("2.5.1", "cu124", companions="numpy"), [("setuptools-needed", "error")], id="no-setuptools"),
        pytest.param(row("2.5.1", "cu124", companions="numpy", python="3.12"), [], id="setuptools-declared-on-3.12"),
        pytest.param(row("2.8.0", "cu128", glibc="2.27"), [("glibc-floor", "error")], id="glibc-2.27-on-2.8"),
        pytest.param(row("2.6.0", "cu126", glibc="2.27"), [("glibc-floor", "error")], id="glibc-2.27-index-2.6"),
        pytest.param(row("2.6.0", "cu124", glibc="2.27"), [], id="glibc-2.27-on-2.6-default"),
        pytest.param(row("2.5.9", "cu124"), [("known-torch", "error")], id="no-such-torch"),
    ],
)
def test_what_is_said_about_a_row(target: Target, expected: list[tuple[str, str]]) -> None:
    """Each wrong row is refused by its own rule, each working one is not; a note explains what is peculiar."""
    assert told(target) == expected


def test_a_build_with_suffixed_architectures_only_is_exact() -> None:
    """A build that lists only sm_90a runs on neither sm_90 nor sm_100."""
    assert not rules.runs_on("sm_100", ["sm_90a"])
    assert not rules.runs_on("sm_90", ["sm_90a"])
    assert rules.runs_on("sm_90a", ["sm_90a"])
    assert rules.runs_on("sm_121", ["sm_120"])
    assert rules.runs_on("sm_121", ["compute_90"])
    assert not rules.runs_on("sm_80", ["sm_86"])


def test_a_refusal_says_rule_evidence_and_what_to_use_instead() -> None:
    """The walk-through's own row, torch 2.8 with CUDA 12.4 on a 4090D, is answered with one that works there."""
    with pytest.raises(MatrixError) as raised:
        compat.refuse(row("2.8.0", "cu124", gpu="rtx4090d", arch="sm_89", driver="550.90.07"), KNOWN)
    text = str(raised.value)
    assert "variant-exists: torch 2.8.0 has no cu124 build" in text
    assert "cu126, cu128, cu129" in text
    assert "torch28-cu126-rtx4090d" in text


def test_driver_refusals_name_the_minimum() -> None:
    """A driver that is too old is refused with the oldest that works; an old enough one says what is lost."""
    (refused,) = lint(row("2.9.0", "cu130", driver="550.90.07"), KNOWN)
    assert "at least 580.65.06" in refused.message
    (allowed,) = lint(row("2.8.0", "cu128", driver="550.90.07"), KNOWN)
    assert "minor-version compatibility" in allowed.message
    assert "570.124.06" in allowed.message


variants = [name for name in sorted(facts.every_variant(KNOWN)) if name != "xpu"]
rows = st.builds(
    row,
    st.sampled_from([release.torch for release in KNOWN.releases]),
    st.sampled_from(variants),
    gpu=st.just("some"),
    arch=st.sampled_from(["", "sm_60", "sm_70", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx1102", "gfx950"]),
    driver=st.sampled_from(["", "450.80.02", "535.54.03", "550.90.07", "580.95.05"]),
    python=st.sampled_from(["3.8", "3.10", "3.13"]),
    glibc=st.sampled_from(["2.17", "2.36"]),
    companions=st.sampled_from(["numpy>=2", "numpy<2 setuptools", "numpy>=2 setuptools"]),
)


@settings(deadline=None)
@given(rows)
def test_any_row_gets_an_answer(target: Target) -> None:
    """Lint never raises, every finding has a rule and evidence, and the row it offers has no error itself."""
    named = {rule.__name__.replace("_", "-") for rule in rules.RULES}
    for finding in lint(target, KNOWN):
        assert finding.rule in named
        assert finding.message
        assert finding.evidence
    near = compat.nearest_row(target, KNOWN)
    offered = [other for other in compat.alternatives(target, KNOWN) if other.id == near]
    assert bool(near) == any(not compat.wrong(other, KNOWN) for other in compat.alternatives(target, KNOWN))
    assert not near or any(not compat.wrong(other, KNOWN) for other in offered)


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
    found = [finding for finding in lint(target, KNOWN) if finding.rule == "toolchain" and package in finding.nearest]
    assert [finding.severity for finding in found] == ["error"]
    assert f"no package {package}: " in found[0].message
    assert why in found[0].message
    with pytest.raises(MatrixError, match="toolchain"):
        compat.refuse(target, KNOWN)


def test_packages_that_bring_the_same_will_do() -> None:
    """build-essential holds both compilers; a package with another Python's headers is none."""
    same = ("build-essential", "libpython3.11-dev", "python3-full", "tini", "ca-certificates")
    assert told(replace(ROW, base=replace(ROW.base, packages=same))) == []
    wrong = replace(ROW, base=replace(ROW.base, python="3.12"))
    assert told(wrong) == [("base-python", "error")]
    other = tuple(name.replace("3.11-dev", "3.12-dev") for name in ROW.base.packages)
    assert told(replace(ROW, base=replace(ROW.base, packages=other))) == [("toolchain", "error")]


@pytest.mark.parametrize(
    ("suite", "python", "glibc", "nearest"),
    [
        ("bookworm", "3.12", "2.36", {"python: '3.11'"}),
        ("trixie", "3.11", "2.36", {"python: '3.13'", "glibc: '2.41'"}),
        ("jammy", "3.10", "2.36", {"glibc: '2.35'"}),
        ("noble", "3.12", "2.39", set()),
        ("custom", "3.12", "2.50", set()),
    ],
)
def test_a_base_says_what_its_suite_has(suite: str, python: str, glibc: str, nearest: set[str]) -> None:
    """Another Python or C library than the archive's is an error with the right one; unknown suites are not judged."""
    found = lint(row("2.8.0", "cu128", suite=suite, python=python, glibc=glibc), KNOWN)
    assert {finding.nearest for finding in found if finding.rule.startswith("base-")} == nearest
    assert {finding.severity for finding in found if finding.rule.startswith("base-")} == (
        {"error"} if nearest else set()
    )
