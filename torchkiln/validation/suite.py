"""validate/ seen from outside: its checks, and what it holds an image against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.oci.image import canonical

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.lock.lockfile import Lock
    from torchkiln.matrix.target import Target

SCHEMA = 1
"""Of validate/expect.py."""
SUITE_CHECK = "suite.run"
"""Our own word on whether the suite ran; the others are files in checks/."""
BACKENDS = ("eager", "aot_eager", "inductor")
"""Claimed by every row: the check compiles with each."""


def expectation(target: Target, lock: Lock) -> bytes:
    """What the row promises, for validate/ (its expect.py names the fields); canonical, since a layer holds it."""
    release, accelerator, gpu = target.release, target.accelerator, target.gpu
    return canonical(
        {
            "schema": SCHEMA,
            "target": target.id,
            "arch": target.arch,
            "python": target.base.python,
            "torch": release.torch,
            "torchvision": release.torchvision,
            "torchaudio": release.torchaudio,
            "accelerator": accelerator.variant,
            "kind": accelerator.kind,
            "toolkit": accelerator.version,
            "driver_floor": target.driver_floor,
            "driver_full": accelerator.driver_full,
            "archs": list(accelerator.archs),
            "gpu": gpu.id,
            "gpu_arch": gpu.arch,
            "gpu_memory_gb": gpu.memory_gb,
            "flavour": target.flavour.id,
            "backends": list(BACKENDS),
            "thresholds": dict(gpu.thresholds),
            "pins": {pin.name: pin.version for pin in lock.pins},
            "required": list(target.required),
        }
    )


def identifiers(root: Path) -> tuple[str, ...]:
    """Check ids by file name, as validate/discovery.py gives them."""
    names = sorted(path.stem for path in (root / "checks").glob("*.py") if not path.stem.startswith("_"))
    return tuple(name.replace("_", ".", 1) for name in names)
