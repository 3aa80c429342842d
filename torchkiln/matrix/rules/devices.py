"""Rules about the GPU that a row is for: its driver, its architecture, and how it gets into the container."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from torchkiln.matrix import facts
from torchkiln.matrix.rules.finding import error, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.rules.finding import Finding
    from torchkiln.matrix.target import Target

ARCH = re.compile(r"(?:sm_|compute_)(\d+)(\d)([a-z]?)")

SINGLE = ("--cpus", "--gpus", "--ipc", "--memory", "--network", "--pid", "--runtime", "--shm-size", "--user")
"""Options of `docker run` that have one value."""


def gpu_name(target: Target, known: Facts) -> Iterator[Finding]:
    """A GPU that the facts know by its name has its own architecture, and any other one that exists."""
    gpu, source = target.gpu, known.sources["gpu_profiles"]
    own = facts.arch_of(known, gpu.id)
    if gpu.arch and own and gpu.arch != own:
        yield error("gpu-name", f"{gpu.id} is {own}, the row says {gpu.arch}", source, f"arch: {own}")
    elif gpu.arch and not facts.known_arch(known, gpu.arch):
        message = f"architecture {gpu.arch} is not known: no GPU and no build of torch in the facts has it"
        yield warning("gpu-name", message, f"{source}; {known.sources['arch_lists_cuda']}")


def driver(target: Target, known: Facts) -> Iterator[Finding]:
    """The driver of the row's hosts starts this CUDA; with less than the full one, something is lost."""
    stated, accelerator = target.gpu.driver, target.accelerator
    fact = facts.driver(known, accelerator.variant, target.release.torch)
    if not stated or fact is None:
        return
    source = known.sources["cuda_driver"]
    if facts.older(stated, fact.minor_compat):
        message = f"driver {stated} cannot start {accelerator.id}: at least {fact.minor_compat} is needed"
        yield error("driver", message, f"{accelerator.id} needs {fact.minor_compat}; {source}")
    elif fact.full and facts.older(stated, fact.full):
        message = (
            f"driver {stated} runs {accelerator.id} by minor-version compatibility: compiled kernels run, "
            f"PTX made by a newer toolkit does not compile; {fact.full} has everything"
        )
        yield note("driver", message, f"{accelerator.id}: {fact.minor_compat} at least, {fact.full} in full; {source}")


def gpu_driver(target: Target, known: Facts) -> Iterator[Finding]:
    """A GPU newer than its driver is not made usable by any compatibility."""
    arch, source = target.gpu.arch, known.sources["gpu_profiles"]
    floor, stated, near = facts.gpu_driver(known, arch), target.gpu.driver, facts.neighbour(known, arch)
    if floor and stated and facts.older(stated, floor):
        message = f"driver {stated} does not know {arch}: branch {floor} or newer is needed"
        yield error("gpu-driver", message, source, f"driver {floor} or newer")
    elif near != arch:
        message = f"the oldest driver that knows {arch} is not established"
        yield note("gpu-driver", f"{message}: at least that of {near}" if near else message, source)


def kernel_driver(target: Target, known: Facts) -> Iterator[Finding]:
    """AMD tests each kernel driver with some ROCm versions; the wheels bring the user space."""
    stated, accelerator = target.gpu.driver, target.accelerator
    if accelerator.kind != "rocm" or not stated:
        return
    row, source = facts.kernel_driver(known, stated), known.sources["rocm"]
    if row and row.tested(accelerator.version):
        return
    if row is None or not row.complete:
        message = f"whether amdgpu {stated} runs ROCm {accelerator.version} is not established"
        yield note("kernel-driver", message, source)
    else:
        message = f"amdgpu {stated} is not tested with ROCm {accelerator.version}"
        near = f"amdgpu {', '.join(facts.kernel_drivers(known, accelerator.version)) or 'of its own release'}"
        yield warning("kernel-driver", message, f"it is with {', '.join(row.userspace)}; {source}", near)


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
    source = known.sources["arch_lists_rocm" if accelerator.kind == "rocm" else "arch_lists_cuda"]
    if not arch:
        return
    if facts.kind(arch) != accelerator.kind:
        message = f"{target.gpu.id} ({arch}) is no device for {accelerator.id}"
        yield error(
            "gpu-arch", message, f"{accelerator.id} is a {accelerator.kind} build; {known.sources['gpu_profiles']}"
        )
    elif not accelerator.archs and accelerator.variant not in facts.variants(known, target.release.torch):
        return  # there is no such build, which variant_exists tells
    elif not accelerator.archs:
        message = f"which GPUs the {accelerator.id} build of torch {target.release.torch} holds is not established"
        yield note("gpu-arch", message, source)
    elif not runs_on(arch, accelerator.archs):
        fact = f"it holds {', '.join(accelerator.archs)}; {source}"
        message = f"the {accelerator.id} build of torch {target.release.torch} has no code for {arch}"
        yield error("gpu-arch", message, fact)
    elif arch not in accelerator.archs:
        message = f"{arch} runs code built for another minor of the same major, or PTX"
        yield note("gpu-arch", message, f"the wheels hold {', '.join(accelerator.archs)}; {source}")


def ptx_driver(target: Target, known: Facts) -> Iterator[Finding]:
    """A GPU for which the wheels hold only PTX needs the full driver: an older one does not compile it."""
    accelerator, stated = target.accelerator, target.gpu.driver
    built = [name for name in accelerator.archs if name.startswith("sm_")]
    only_ptx = runs_on(target.gpu.arch, accelerator.archs) and not runs_on(target.gpu.arch, built)
    full = accelerator.driver_full
    if accelerator.kind == "cuda" and only_ptx and full and stated and facts.older(stated, full):
        message = f"{target.gpu.arch} runs only the PTX of {accelerator.id}, which driver {stated} cannot compile"
        yield error("ptx-driver", message, known.sources["cuda_driver"], f"driver {full} or newer")


def gpu_toolkit(target: Target, known: Facts) -> Iterator[Finding]:
    """An AMD GPU that came with a ROCm is in no build made with an older one, whatever its list of targets says."""
    first, accelerator = facts.first_rocm(known, target.gpu.arch), target.accelerator
    if first and accelerator.kind == "rocm" and facts.older(accelerator.version, first):
        message = f"{target.gpu.arch} needs ROCm {first} or newer, the row has {accelerator.version}"
        yield error("gpu-toolkit", message, known.sources["gpu_profiles"])


def compile_applies(target: Target, known: Facts) -> Iterator[Finding]:
    """Triton compiles for no GPU below sm_70: nothing that compiles is asked of the row."""
    yield from _capability("compile-applies", target, known)


def bfloat16(target: Target, known: Facts) -> Iterator[Finding]:
    """Compiled bfloat16 needs sm_80: benchmarks take fp16 below."""
    yield from _capability("bfloat16", target, known)


def _capability(rule: str, target: Target, known: Facts) -> Iterator[Finding]:
    for need in known.capabilities:
        if need.rule == rule and _before(target.gpu.arch, need.arch):
            message = f"{need.feature} does not apply to {target.gpu.arch}"
            yield note(rule, message, f"{need.why}; {known.sources['capabilities']}")


def _before(arch: str, other: str) -> bool:
    """Whether a compute capability is below another; False for what is none."""
    one, two = ARCH.fullmatch(arch), ARCH.fullmatch(other)
    return bool(one and two and (int(one[1]), int(one[2])) < (int(two[1]), int(two[2])))


def run_options(target: Target, known: Facts) -> Iterator[Finding]:
    """The row's `docker run` options let its devices in, and only those; data loaders get shared memory."""
    stated, kind = joined(target.gpu.run_options), target.accelerator.kind
    source = known.sources["run_options"]
    for needed in known.run_options:
        there = next((option for option in stated if option.startswith(needed.any)), "")
        if kind in needed.kinds and not there:
            message = f"the run options lack {needed.option}: {needed.why}"
            yield warning("run-options", message, source, needed.option)
        elif kind not in needed.kinds and there:
            message = f"the run options have {there}, which is for {' and '.join(needed.kinds)}"
            yield warning("run-options", message, source, f"run options without {there}")

    counts = Counter(one.partition("=")[0] for one in stated)
    for name in (one for one in SINGLE if counts[one] > 1):
        values = [one for one in stated if one.partition("=")[0] == name]
        message = f"the run options have {name} {len(values)} times, and Docker takes the last"
        yield warning("run-options", message, f"{', '.join(values)}; {source}", values[-1])


def joined(options: Iterable[str]) -> tuple[str, ...]:
    """Options with their values: `--device /dev/kfd` as two words is the same as with `=`."""
    return tuple(re.sub(r" (?!-)", "=", " ".join(options)).split())


def run_hazards(target: Target, known: Facts) -> Iterator[Finding]:
    """No run option makes a row lie about itself: a pretended GPU, another library, a compiler that is switched off."""
    for hazard in known.hazards:
        for option in joined(target.gpu.run_options):
            if hazard.has in option:
                yield warning(
                    "run-hazards", f"run option {option}: {hazard.why}", known.sources["hazards"], hazard.instead
                )
