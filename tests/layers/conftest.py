"""One real base for all tests that need it: made once per run, by mmdebstrap."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchkiln import home as homes
from torchkiln import plan
from torchkiln.layers.base import debian
from torchkiln.lock import lockfile
from torchkiln.matrix import schema
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from torchkiln.home import Home
    from torchkiln.layers.base.debian import BaseResult

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The base of the matrix, as it came out of the archive today."""

    home: Home
    store: Store
    spec: plan.BaseSpec
    recipe: debian.Recipe
    result: BaseResult


@pytest.fixture(scope="session")
def bookworm(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The matrix's base in a home of its own; for tests marked `network`."""
    home = homes.prepare(homes.Home(tmp_path_factory.mktemp("bookworm")))
    base = next(target.base for target in schema.load(ROOT / "matrix.yaml").targets if target.base.id == "bookworm")
    recipe = debian.recipe(ROOT / "images" / "bases" / "debian")
    lock = lockfile.read_base(ROOT / "images" / "locks" / "base-bookworm.txt")
    spec = plan.BaseSpec(base=base, lock=lock, recipe=recipe.digest)
    store = Store(home.store)
    result = debian.build(home, store, spec, recipe=recipe, frozen=False, environment=os.environ)
    return Made(home=home, store=store, spec=spec, recipe=recipe, result=result)
