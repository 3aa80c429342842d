"""Where this checkout lies, and what commands take from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln import home as homes

if TYPE_CHECKING:
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.schema import Matrix
    from torchkiln.project import Project

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
LOCKS = ROOT / "images" / "locks"


def project() -> Project:
    """This checkout with the user's cache."""
    from torchkiln.project import Project

    return Project(root=ROOT, home=homes.prepare(homes.locate(os.environ)), environment=dict(os.environ))


def family(known: Facts | None = None) -> Matrix:
    """What matrix.yaml states, read with the facts that are known already, or anew."""
    from torchkiln.matrix import schema

    return schema.load(ROOT / "matrix.yaml", known)
