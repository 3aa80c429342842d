"""Real bases for all tests that need them: each made once per run, by mmdebstrap."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchkiln import home as homes
from torchkiln import specs
from torchkiln.layers.base import debian
from torchkiln.lock import baselock
from torchkiln.matrix import schema
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from torchkiln.home import Home
    from torchkiln.layers.base import BaseResult
    from torchkiln.layers.base.recipe import Recipe

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A base of the matrix, as it came out of the archive today."""

    home: Home
    store: Store
    spec: specs.BaseSpec
    recipe: Recipe
    result: BaseResult


def _made(name: str, folder: Path) -> Made:
    """A base of the matrix in a home of its own."""
    home = homes.prepare(homes.Home(folder))
    recipe = debian.recipe()
    lock = baselock.read(ROOT / "images" / "locks" / f"base-{name}.txt")
    spec = specs.BaseSpec(base=schema.load(ROOT / "matrix.yaml").bases[name], lock=lock, recipe=recipe.digest)
    store = Store(home.store)
    result = debian.build(home, store, spec, recipe=recipe, frozen=False, environment=os.environ)
    return Made(home=home, store=store, spec=spec, recipe=recipe, result=result)


@pytest.fixture(scope="session")
def bookworm(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Debian 12; for tests marked `network`."""
    return _made("bookworm", tmp_path_factory.mktemp("bookworm"))


@pytest.fixture(scope="session")
def trixie(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Debian 13; for tests marked `network`."""
    return _made("trixie", tmp_path_factory.mktemp("trixie"))
