"""Forms that depend on what lies elsewhere in the repository."""

from __future__ import annotations

import re
from typing import get_args

from tests.kiln import ROOT
from torchkiln.matrix.forms import Threshold

MEASURED = re.compile(r'compare\(torch, "(\w+)", ')


def test_every_measurement_of_the_suite_has_its_threshold() -> None:
    """Names are those that validate/ asks for: of what runs on the GPU with cuda, of the rest with cpu."""
    found = set()
    for path in (ROOT / "validate/checks").glob("*.py"):
        device = "cuda" if path.stem.startswith("gpu_") else "cpu"
        found |= {f"speed.{device}.{name}" for name in MEASURED.findall(path.read_text())}
    assert found == set(get_args(Threshold))
