"""Rules about the base: its suite's Python and C library, what compiling needs, what must come from the host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchkiln.matrix import facts
from torchkiln.matrix.rules.finding import error, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.rules.finding import Finding
    from torchkiln.matrix.target import Target

DRIVER_PACKAGE = re.compile(
    r"cuda-compat-.*|cuda-drivers.*|libcuda1|lib(?:nvcuvid|nvidia-|xnvctrl).*"
    r"|nvidia-(?:driver|kernel|open|alternative|utils|compute|headless).*"
    r"|amdgpu(?:-dkms.*|-core|-lib.*|-pro.*)?"
)
"""Debian's, Ubuntu's and the vendors' names for what belongs to a kernel driver."""

TOOLKIT_PACKAGE = re.compile(
    r"cuda-(?!compat|drivers|keyring).*|nvidia-(?:cuda-|cudnn).*|rocm-.*|hip(?:cc|-|blas|cub|fft|rand|sparse|solver).*"
    r"|lib(?:amdhip64|hip|hsa-|hsakmt|roc(?:blas|fft|rand|sparse|solver|m-)|rccl|miopen).*"
    r"|lib(?:cu(?:dart|dnn|blas|fft|file|rand|solver|sparse|inj|pti)|nvrtc|nvjitlink|nvtoolsext|nccl|npp).*"
)
"""Their names for parts of a CUDA or ROCm; the vendors' end in its version: cuda-nvcc-12-4."""

TORCH_PACKAGE = re.compile(r"(?:python3-|lib)torch(?:\d|-|vision|audio|$).*")
"""Debian's names for a PyTorch."""


def base_python(target: Target, known: Facts) -> Iterator[Finding]:
    """The base's Python is the one that its suite has; no other gets installed."""
    base, suite = target.base, facts.suite(known, target.base.suite)
    if suite and base.python != suite.python:
        message = f"{base.suite} has Python {suite.python}, base {base.id} says {base.python}"
        yield error("base-python", message, known.sources["suites"], f"python: '{suite.python}'")
    elif base.suite and suite is None:
        message = f"suite {base.suite} is not known, so nobody checks what base {base.id} says of its Python and glibc"
        yield note("base-python", message, known.sources["suites"])


def base_glibc(target: Target, known: Facts) -> Iterator[Finding]:
    """The base's C library is the one that its suite has."""
    base, suite = target.base, facts.suite(known, target.base.suite)
    if suite and base.glibc != suite.glibc:
        message = f"{base.suite} has glibc {suite.glibc}, base {base.id} says {base.glibc}"
        yield error("base-glibc", message, known.sources["suites"], f"glibc: '{suite.glibc}'")


def toolchain(target: Target, known: Facts) -> Iterator[Finding]:
    """The base has what compiling and starting need; what a foreign image holds is seen when it is there."""
    base = target.base
    for names, why in lacking(target, known) if base.kind == "debian" else ():
        message = f"base {base.id} has no package {names[0]}: {why}"
        fact = f"{' or '.join(names)}; {known.sources['base_toolchain']}"
        yield error("toolchain", message, fact, f"{names[0]} among the packages of base {base.id}")


def lacking(target: Target, known: Facts) -> Iterator[tuple[tuple[str, ...], str]]:
    """Packages of which a base should have one and has none, and what they are for."""
    base, suite = target.base, facts.suite(known, target.base.suite)
    python = suite.python if suite else base.python  # a wrong minor is told once, by base_python
    for tool in known.tools:
        names = tuple(name.format(python=python) for name in tool.packages)
        if not set(names) & set(base.packages):
            yield names, tool.why


def driver_packages(target: Target, known: Facts) -> Iterator[Finding]:
    """No driver library is in an image: the host's own is injected, and another beside it fails (error 803 or 804)."""
    for name in target.base.packages:
        if DRIVER_PACKAGE.fullmatch(name):
            message = f"package {name} belongs to the host's driver: beside the injected one CUDA does not start"
            fact = f"compatibility libraries work on data-centre GPUs only; {known.sources['cuda_driver']}"
            yield error("driver-packages", message, fact, f"base {target.base.id} without {name}")


def toolkit_packages(target: Target, known: Facts) -> Iterator[Finding]:
    """The base holds no PyTorch, CUDA or ROCm but the row's: the loader may find it before the wheels' own."""
    for name in target.base.packages:
        if other_toolkit(name, target):
            what = "PyTorch" if TORCH_PACKAGE.fullmatch(name) else "CUDA or ROCm"
            message = f"package {name} is another {what} than the one in the wheels of {target.accelerator.id}"
            yield warning(
                "toolkit-packages", message, known.sources["hazards"], f"base {target.base.id} without {name}"
            )


def other_toolkit(name: str, target: Target) -> bool:
    """Whether a package is part of a PyTorch, CUDA or ROCm that is not known to be the row's."""
    version = re.search(r"-(\d+)-(\d+)$", name)
    own = version is not None and f"{version[1]}.{version[2]}" == target.accelerator.version
    return TORCH_PACKAGE.fullmatch(name) is not None or (TOOLKIT_PACKAGE.fullmatch(name) is not None and not own)
