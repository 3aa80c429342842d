"""What the row of the matrix promises; written by the gate, so the image cannot shorten its own list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Expect:
    """One row; empty values promise nothing."""

    schema: int = SCHEMA
    target: str = ""
    arch: str = ""
    python: str = ""
    """Minor: `3.11`."""
    torch: str = ""
    """Public versions, without the accelerator's suffix; empty where the row goes without."""
    torchvision: str = ""
    torchaudio: str = ""
    accelerator: str = ""
    """The local version suffix: `cu124`, `rocm6.2`, `cpu`."""
    kind: str = ""
    """cuda, rocm or cpu."""
    toolkit: str = ""
    """`12.4`: what torch.version.cuda or .hip starts with."""
    driver_floor: str = ""
    driver_full: str = ""
    archs: tuple[str, ...] = ()
    """Architectures compiled into the wheels."""
    gpu: str = ""
    gpu_arch: str = ""
    gpu_memory_gb: int = 0
    """Of the smallest card of its kind."""
    flavour: str = ""
    backends: tuple[str, ...] = ()
    """Dynamo backends the row claims: each must compile, and match eager."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    """The lock: normalised name → version."""
    required: tuple[str, ...] = ()
    """Globs over check ids."""

    @property
    def gpu_row(self) -> bool:
        """Whether the row promises a GPU."""
        return self.kind in {"cuda", "rocm"}

    @property
    def gpu_compiles(self) -> bool:
        """Whether there is a GPU that Triton compiles for: NVIDIA's from compute capability 7.0 on."""
        capability = self.gpu_arch[len("sm_") :] if self.gpu_arch.startswith("sm_") else ""
        return self.gpu_row and not (capability.isdecimal() and int(capability) < 70)  # noqa: PLR2004  capability 7.0


def parse(text: str) -> Expect:
    """From JSON; ValueError if it is not an expectation of this schema."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"not an expectation of schema {SCHEMA}")
    known = {entry.name for entry in fields(Expect)}
    unknown = sorted(set(document) - known)
    if unknown:
        raise ValueError(f"unknown keys in the expectation: {', '.join(unknown)}")
    return Expect(**{name: _frozen(value) for name, value in document.items()})


def read(path: Path) -> Expect:
    """From a file; OSError or ValueError."""
    return parse(path.read_text(encoding="utf-8"))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
