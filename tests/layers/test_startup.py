"""Inductor is told what the image's compiler builds, and nothing else changes."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from torchkiln.layers import startup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

    Imported = Callable[..., ModuleType]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imported]:
    """Imports a text in the place of Inductor's settings, as Python does after its start, and forgets it."""
    name = "inductor_settings_of_a_test"
    monkeypatch.setattr(startup.Vectors, "settings", name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def imported(text: str, machine: str = "x86_64") -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        startup.vectorise(sys.meta_path, machine)
        return importlib.import_module(name)

    yield imported
    sys.modules.pop(name, None)


SWITCH = "class cpp: vec_isa_ok = None"


def test_inductor_is_told_what_the_compiler_builds(settings: Imported) -> None:
    """Once its settings are imported, and once only: what is imported again is as torch has it."""
    module = settings(SWITCH)
    assert module.cpp.vec_isa_ok is True
    assert importlib.reload(module).cpp.vec_isa_ok is None


@pytest.mark.parametrize("variable", ["CXX", "TORCHINDUCTOR_VEC_ISA_OK"])
def test_inductor_tries_by_itself_where_somebody_said_otherwise(
    settings: Imported, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Another compiler, or torch's own variable."""
    monkeypatch.setenv(variable, "0")
    assert settings(SWITCH).cpp.vec_isa_ok is None


@pytest.mark.parametrize(
    "text", ["class cpp: vec_isa_ok = False", "class cpp: vec_isa_ok = 0", "class cpp: simdlen = 0"]
)
def test_settings_that_say_so_stay(settings: Imported, text: str) -> None:
    """Releases that decided otherwise, or know no such switch, are imported as they are."""
    stated = vars(settings(text).cpp)
    assert stated.get("vec_isa_ok", False) in (False, 0)
    assert "vec_isa_ok" in stated or "simdlen" in stated


def test_a_loader_that_others_share_is_left_as_it_was(settings: Imported) -> None:
    """This module's name ends in _test, and so pytest loads it, as it does all of those."""
    loader = getattr(settings(SWITCH).__spec__, "loader", None)
    assert type(loader).__name__ == "AssertionRewritingHook"
    assert "exec_module" not in vars(loader)


def test_settings_that_fail_fail_as_ever(settings: Imported) -> None:
    """The error is torch's own."""
    with pytest.raises(ZeroDivisionError):
        settings("1 / 0")


def test_other_machines_are_left_alone(settings: Imported) -> None:
    """Their extensions are others."""
    assert settings(SWITCH, "aarch64").cpp.vec_isa_ok is None


def test_the_finder_is_there_once() -> None:
    """However often the start-up runs."""
    finders: list[object] = []
    startup.vectorise(finders, "x86_64")
    startup.vectorise(finders, "x86_64")
    assert len(finders) == 1
