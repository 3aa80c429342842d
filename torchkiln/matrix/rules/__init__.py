"""What makes a row right or wrong: one named function a rule, over a target and the facts; pure.

A fact that is unknown never makes an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.matrix.rules import bases, devices, requirements, wheels
from torchkiln.matrix.rules.devices import runs_on
from torchkiln.matrix.rules.finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.target import Target

__all__ = ["NAMES", "RULES", "Finding", "Severity", "check", "runs_on"]

RULES: tuple[Callable[[Target, Facts], Iterator[Finding]], ...] = (
    wheels.machine,
    wheels.known_torch,
    wheels.trio_pairing,
    wheels.variant_exists,
    wheels.python_range,
    wheels.triton_python,
    wheels.glibc_floor,
    devices.gpu_name,
    devices.driver,
    devices.gpu_driver,
    devices.kernel_driver,
    devices.gpu_arch,
    devices.ptx_driver,
    devices.gpu_toolkit,
    devices.compile_applies,
    devices.bfloat16,
    devices.run_options,
    devices.run_hazards,
    requirements.trio_once,
    requirements.triton_flavour,
    requirements.cuda_packages,
    requirements.numpy_bound,
    requirements.setuptools_needed,
    requirements.flavour_available,
    bases.base_python,
    bases.base_glibc,
    bases.toolchain,
    bases.driver_packages,
    bases.toolkit_packages,
)

NAMES = tuple(rule.__name__.replace("_", "-") for rule in RULES)
"""What findings call their rules."""


def check(target: Target, known: Facts) -> Iterator[Finding]:
    """What every rule says about a row, in the order of the rules."""
    for rule in RULES:
        yield from rule(target, known)
