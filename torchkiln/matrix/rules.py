"""What makes a row right or wrong: one named function a rule, over a target and the facts; pure.

An error refuses the row, a warning is likely to hurt, a note says what a reader should know. A fact that is
unknown never makes an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchkiln.matrix import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.target import Target

Severity = Literal["error", "warning", "note"]
ARCH = re.compile(r"(?:sm_|compute_)(\d+)(\d)([a-z]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule has to say about a row."""

    rule: str
    severity: Severity
    message: str
    evidence: str
    """The fact, and where it comes from."""
    nearest: str = ""
    """The nearest value or row that would do."""


def _error(rule: str, message: str, evidence: str, nearest: str = "") -> Finding:
    return Finding(rule=rule, severity="error", message=message, evidence=evidence, nearest=nearest)


def _warning(rule: str, message: str, evidence: str, nearest: str = "") -> Finding:
    return Finding(rule=rule, severity="warning", message=message, evidence=evidence, nearest=nearest)


def _note(rule: str, message: str, evidence: str) -> Finding:
    return Finding(rule=rule, severity="note", message=message, evidence=evidence)


def known_torch(target: Target, known: Facts) -> Iterator[Finding]:
    """The facts know the release."""
    torch = target.release.torch
    if facts.release(known, torch) is None:
        versions = [row.torch for row in known.releases]
        near = get_close_matches(torch, versions, n=1, cutoff=0) or versions[-1:]
        yield _error(
            "known-torch",
            f"torch {torch} is not known",
            f"releases {versions[0]} to {versions[-1]}; {known.sources['releases']}",
            f"torch {near[0]}",
        )


def trio_pairing(target: Target, known: Facts) -> Iterator[Finding]:
    """Torchvision and torchaudio are those released with this torch."""
    pair = facts.release(known, target.release.torch)
    if pair is None:
        return
    source = known.sources["releases"]
    vision, audio = target.release.torchvision, target.release.torchaudio
    if vision and vision not in {pair.torchvision, *pair.torchvision_also}:
        fact = f"torch {pair.torch} pairs with torchvision {pair.torchvision}; {source}"
        message = f"torchvision {vision} does not belong to torch {pair.torch}"
        yield _error("trio-pairing", message, fact, f"torchvision {pair.torchvision}")
    if audio and pair.torchaudio and audio != pair.torchaudio:
        fact = f"torch {pair.torch} pairs with torchaudio {pair.torchaudio}; {source}"
        message = f"torchaudio {audio} does not belong to torch {pair.torch}"
        yield _error("trio-pairing", message, fact, f"torchaudio {pair.torchaudio}")
    if audio and not pair.torchaudio:
        yield from _audio_without_pair(audio, pair.torch, source)


def _audio_without_pair(audio: str, torch: str, source: str) -> Iterator[Finding]:
    fact = f"no torchaudio was released for torch {torch}; 2.11.1 accepts torch>=2.11; {source}"
    if audio == "2.11.1":
        yield _note("trio-pairing", f"torchaudio {audio} was not released with torch {torch} but accepts it", fact)
    else:
        message = f"torchaudio {audio} does not belong to torch {torch}"
        yield _error("trio-pairing", message, fact, "torchaudio 2.11.1, or none")


def variant_exists(target: Target, known: Facts) -> Iterator[Finding]:
    """There are wheels of this torch for this accelerator."""
    torch, variant = target.release.torch, target.accelerator.variant
    legal = facts.variants(known, torch)
    if legal and variant not in legal:
        fact = f"torch {torch} is built for {', '.join(legal)}; {known.sources['index_variants']}"
        yield _error("variant-exists", f"torch {torch} has no {variant} build", fact)


def python_range(target: Target, known: Facts) -> Iterator[Finding]:
    """There are wheels of this torch for the base's Python."""
    row = facts.release(known, target.release.torch)
    if row and target.base.python not in row.python:
        fact = f"torch {row.torch} has wheels for Python {', '.join(row.python)}; {known.sources['releases']}"
        message = f"torch {row.torch} has no wheel for Python {target.base.python}"
        plain = [python for python in row.python if not python.endswith("t")]
        near = min(plain, key=lambda python: abs(_minor(python) - _minor(target.base.python)))
        yield _error("python-range", message, fact, f"Python {near}")


def _minor(python: str) -> int:
    return int(python.split(".")[1])


def driver(target: Target, known: Facts) -> Iterator[Finding]:
    """The driver of the row's hosts starts this CUDA; with less than the full one, something is lost."""
    stated, accelerator = target.gpu.driver, target.accelerator
    fact = facts.driver(known, accelerator.variant, target.release.torch)
    if not stated or fact is None:
        return
    source = known.sources["cuda_driver"]
    if Version(stated) < Version(fact.minor_compat):
        message = f"driver {stated} cannot start {accelerator.id}: at least {fact.minor_compat} is needed"
        yield _error("driver", message, f"{accelerator.id} needs {fact.minor_compat}; {source}")
    elif fact.full and Version(stated) < Version(fact.full):
        message = (
            f"driver {stated} runs {accelerator.id} by minor-version compatibility: compiled kernels run, "
            f"PTX made by a newer toolkit does not compile; {fact.full} has everything"
        )
        yield _note("driver", message, f"{accelerator.id}: {fact.minor_compat} at least, {fact.full} in full; {source}")


def gpu_driver(target: Target, known: Facts) -> Iterator[Finding]:
    """A GPU newer than its driver is not made usable by any compatibility."""
    floor = facts.gpu_driver(known, target.gpu.arch)
    stated = target.gpu.driver
    if floor and stated and Version(stated) < Version(floor):
        message = f"driver {stated} does not know {target.gpu.arch}: branch {floor} or newer is needed"
        yield _error("gpu-driver", message, known.sources["gpu_profiles"], f"driver {floor} or newer")


def runs_on(arch: str, built: Iterable[str]) -> bool:
    """Whether code for one of `built` runs on a GPU of `arch`.

    CUDA: same major and lower or equal minor, or embedded PTX of a lower or equal one; a letter suffix matches
    exactly (CUDA programming guide, binary and PTX compatibility). ROCm: the same name.
    """
    return any(_runs(arch, name) for name in built)


def _runs(arch: str, built: str) -> bool:
    wanted, given = ARCH.fullmatch(arch), ARCH.fullmatch(built)
    if wanted is None or given is None or given[3]:
        return arch == built
    have, need = (int(given[1]), int(given[2])), (int(wanted[1]), int(wanted[2]))
    return have <= need and (have[0] == need[0] or built.startswith("compute_"))


def gpu_arch(target: Target, known: Facts) -> Iterator[Finding]:
    """The wheels hold code for the row's GPU."""
    arch, accelerator = target.gpu.arch, target.accelerator
    table = "arch_lists_rocm" if accelerator.kind == "rocm" else "arch_lists_cuda"
    if not arch:
        return
    if arch.startswith("gfx") != (accelerator.kind == "rocm") or accelerator.kind == "cpu":
        message = f"{target.gpu.id} ({arch}) is no device for {accelerator.id}"
        yield _error("gpu-arch", message, f"{accelerator.id} is a {accelerator.kind} build")
    elif not accelerator.archs:
        message = f"which GPUs the {accelerator.id} build of torch {target.release.torch} holds is not established"
        yield _note("gpu-arch", message, known.sources[table])
    elif not runs_on(arch, accelerator.archs):
        fact = f"it holds {', '.join(accelerator.archs)}; {known.sources[table]}"
        message = f"the {accelerator.id} build of torch {target.release.torch} has no code for {arch}"
        yield _error("gpu-arch", message, fact)
    elif arch not in accelerator.archs:
        message = f"{arch} runs code built for another minor of the same major, or PTX"
        yield _note("gpu-arch", message, f"the wheels hold {', '.join(accelerator.archs)}; {known.sources[table]}")


def compile_applies(target: Target, known: Facts) -> Iterator[Finding]:
    """Triton needs compute capability 7.0."""
    found = ARCH.fullmatch(target.gpu.arch)
    if found and int(found[1]) < 7:  # noqa: PLR2004  compute capability 7.0
        message = f"torch.compile does not apply to {target.gpu.arch}"
        yield _note("compile-applies", message, f"Triton needs sm_70 or newer; {known.sources['gpu_profiles']}")


def glibc_floor(target: Target, known: Facts) -> Iterator[Finding]:
    """The base's C library is as new as the wheels need."""
    torch, variant = target.release.torch, target.accelerator.variant
    source = "PyPI" if target.accelerator.by_default else "index"
    rows = (row for row in known.floors if row.source in {source, "any"} and facts.covers(row.torch, torch))
    floor = next((row for row in rows if not row.variants or variant in row.variants), None)
    if floor and Version(target.base.glibc) < Version(floor.real_glibc):
        fact = f"torch {torch} {variant} needs glibc {floor.real_glibc}; {known.sources['wheel_floor']}"
        message = f"base {target.base.id} has glibc {target.base.glibc}, torch {torch} needs {floor.real_glibc}"
        yield _error("glibc-floor", message, fact, f"a base with glibc {floor.real_glibc} or newer")


def numpy_bound(target: Target, known: Facts) -> Iterator[Finding]:
    """NumPy 2 stays out of a torch that was built for NumPy 1."""
    row = next((row for row in known.numpy if facts.covers(row.torch, target.release.torch)), None)
    if row is None:
        return
    asked = _companion(target, "numpy")
    if asked is None or asked.specifier.contains(f"{row.below}.0.0"):
        message = f"torch {target.release.torch} breaks with NumPy {row.below}, and the companions allow it"
        fact = f"torch {row.torch} needs numpy below {row.below}; {known.sources['numpy']}"
        yield _error("numpy-bound", message, fact, f"numpy<{row.below} among the companions")


def setuptools_needed(target: Target, known: Facts) -> Iterator[Finding]:
    """What torch.compile imports is there, even if no wheel declares it."""
    python = Version(target.base.python)
    rows = (row for row in known.setuptools if facts.covers(row.torch, target.release.torch))
    row = next((row for row in rows if python < Version(row.python_below)), None)
    if row and _companion(target, "setuptools") is None:
        message = f"torch {target.release.torch} on Python {target.base.python} cannot compile without setuptools"
        fact = f"{row.detail}; {known.sources['triton_setuptools']}"
        yield _error("setuptools-needed", message, fact, "setuptools among the companions")


def _companion(target: Target, name: str) -> Requirement | None:
    asked = (Requirement(text) for text in target.release.companions)
    return next((requirement for requirement in asked if canonicalize_name(requirement.name) == name), None)


def triton_python(target: Target, known: Facts) -> Iterator[Finding]:
    """Torch asks for Triton on this Python; without it nothing compiles for a GPU."""
    row = next((row for row in known.triton if facts.covers(row.torch, target.release.torch)), None)
    limit = row.triton_only_for_python.removeprefix("<") if row else "any"
    if target.accelerator.kind != "cpu" and limit != "any" and Version(target.base.python) >= Version(limit):
        message = f"torch {target.release.torch} comes without Triton on Python {target.base.python}: no torch.compile"
        fact = f"Triton only for Python below {limit}; {known.sources['releases']}"
        yield _warning("triton-python", message, fact, f"Python below {limit}")


def base_python(target: Target, known: Facts) -> Iterator[Finding]:
    """The base's Python is the one that its suite has; no other gets installed."""
    base, suite = target.base, facts.suite(known, target.base.suite)
    if suite and base.python != suite.python:
        message = f"{base.suite} has Python {suite.python}, base {base.id} says {base.python}"
        yield _error("base-python", message, known.sources["suites"], f"python: '{suite.python}'")


def base_glibc(target: Target, known: Facts) -> Iterator[Finding]:
    """The base's C library is the one that its suite has."""
    base, suite = target.base, facts.suite(known, target.base.suite)
    if suite and base.glibc != suite.glibc:
        message = f"{base.suite} has glibc {suite.glibc}, base {base.id} says {base.glibc}"
        yield _error("base-glibc", message, known.sources["suites"], f"glibc: '{suite.glibc}'")


def toolchain(target: Target, known: Facts) -> Iterator[Finding]:
    """The base has what compiling and starting need."""
    base, suite = target.base, facts.suite(known, target.base.suite)
    python = suite.python if suite else base.python  # a wrong minor is told once, by base_python
    for tool in known.tools:
        names = [name.format(python=python) for name in tool.packages]
        if not set(names) & set(base.packages):
            message = f"base {base.id} has no package {names[0]}: {tool.why}"
            fact = f"{' or '.join(names)}; {known.sources['base_toolchain']}"
            yield _error("toolchain", message, fact, f"{names[0]} among the packages of base {base.id}")


RULES: tuple[Callable[[Target, Facts], Iterator[Finding]], ...] = (
    known_torch,
    trio_pairing,
    variant_exists,
    python_range,
    driver,
    gpu_driver,
    gpu_arch,
    compile_applies,
    glibc_floor,
    numpy_bound,
    setuptools_needed,
    triton_python,
    base_python,
    base_glibc,
    toolchain,
)
