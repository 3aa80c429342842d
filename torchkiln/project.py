"""What every stage takes from outside: a checkout, a cache and an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.matrix import schema
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A checkout, the user's cache, and the environment the program was started in."""

    root: Path
    home: Home
    environment: Mapping[str, str]

    @property
    def store(self) -> Store:
        """Where images lie."""
        return Store(self.home.store)

    @property
    def locks(self) -> Path:
        """The folder of locks."""
        return self.root / "images" / "locks"

    @property
    def layer_lock(self) -> Path:
        """The file of layers that are known by their keys."""
        return self.locks / "layers.lock"

    @property
    def boundary_lock(self) -> Path:
        """The file of what makes known layers without inflating their wheels."""
        return self.locks / "boundaries.lock"

    @property
    def suite(self) -> Path:
        """The validation suite."""
        return self.root / "validate"

    def family(self) -> Matrix | None:
        """What matrix.yaml states, read anew; None for a checkout without one."""
        path = self.root / "matrix.yaml"
        return schema.load(path) if path.exists() else None

    def base_lock(self, target: Target) -> Path:
        """The package list of a row's base."""
        return self.locks / target.base_lock_name
