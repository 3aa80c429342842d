"""Inductor is told what the image's compiler builds, and nothing else changes."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from torchkiln import process
from torchkiln.layers import startup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.abc import Loader
    from types import ModuleType

    Imported = Callable[..., ModuleType]


NAME = "inductor_settings_of_a_test"
SWITCH = "class cpp: vec_isa_ok = None"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imported]:
    """Imports a text in the place of Inductor's settings, as Python does after its start, and forgets it."""
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(compiler.parent))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(startup.VARIABLE, raising=False)
    monkeypatch.setattr(startup, "COMPILER", str(compiler))
    monkeypatch.setattr(startup.Vectors, "settings", NAME)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [startup.Vectors(), *sys.meta_path])

    def imported(text: str) -> ModuleType:
        (tmp_path / f"{NAME}.py").write_text(text)
        return importlib.import_module(NAME)

    yield imported
    sys.modules.pop(NAME, None)


def test_inductor_is_told_what_the_compiler_builds(settings: Imported) -> None:
    """Whenever its settings are imported, also after somebody has only looked where they are."""
    (Path(sys.path[0]) / f"{NAME}.py").write_text(SWITCH)
    importlib.util.find_spec(NAME)
    module = settings(SWITCH)
    assert module.cpp.vec_isa_ok is True
    assert importlib.reload(module).cpp.vec_isa_ok is True


@pytest.mark.parametrize("variable", ["CXX", "TORCHINDUCTOR_VEC_ISA_OK"])
def test_inductor_tries_by_itself_where_somebody_said_otherwise(
    settings: Imported, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Another compiler, or torch's own variable."""
    monkeypatch.setenv(variable, "0")
    assert settings(SWITCH).cpp.vec_isa_ok is None


def test_inductor_tries_another_compiler(settings: Imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the user's that comes first on PATH: the image's validation has not tried it."""
    other = tmp_path / "own" / "g++"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:{tmp_path / 'bin'}")
    assert settings(SWITCH).cpp.vec_isa_ok is None


def test_other_machines_are_left_alone(settings: Imported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their extensions are others."""
    names = os.uname()
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(**{**_fields(names), "machine": "aarch64"}))
    assert settings(SWITCH).cpp.vec_isa_ok is None


def _fields(names: os.uname_result) -> dict[str, str]:
    return {field: getattr(names, field) for field in ("sysname", "nodename", "release", "version", "machine")}


@pytest.mark.parametrize("text", ["class cpp: vec_isa_ok = False", "class cpp: simdlen = 0", "cpp = None"])
def test_settings_without_the_question_stay(settings: Imported, text: str) -> None:
    """Releases that decided otherwise, or know no such switch, are imported as they are."""
    assert not getattr(settings(text).cpp, "vec_isa_ok", False)


READS = """
import os
class Settings:
    vec_isa_ok = property(lambda self, told=os.environ.get("TORCHINDUCTOR_VEC_ISA_OK") == "1" or None: told)
cpp = Settings()
"""


def test_settings_that_read_the_variable_are_told_by_it(settings: Imported) -> None:
    """What 2.13 is told later holds for one thread alone. No program that is started afterwards inherits it."""
    assert settings(READS).cpp.vec_isa_ok is True
    assert startup.VARIABLE not in os.environ


REFUSES = """
class Settings:
    vec_isa_ok = property(lambda self: None)
cpp = Settings()
"""


def test_settings_that_refuse_stay(settings: Imported) -> None:
    """A release whose switch can't be set is imported all the same."""
    assert settings(REFUSES).cpp.vec_isa_ok is None


def test_a_loader_that_others_share_is_left_as_it_was(settings: Imported) -> None:
    """This module's name ends in _test, and so pytest loads it, as it does all of those."""
    loader = getattr(settings(SWITCH).__spec__, "loader", None)
    assert type(loader).__name__ == "AssertionRewritingHook"
    assert "exec_module" not in vars(loader)


def test_settings_that_fail_fail_as_ever(settings: Imported) -> None:
    """The error is torch's own."""
    with pytest.raises(ZeroDivisionError):
        settings("1 / 0")
    assert startup.VARIABLE not in os.environ


class Odd(importlib.abc.MetaPathFinder):
    """Somebody's finder whose loaders take no attribute."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The settings, by a loader of its own kind."""
        return ModuleSpec(name, cast("Loader", Slotted())) if name == NAME else None


class Slotted:
    """With slots alone."""

    __slots__ = ()

    def create_module(self, _spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        """What Inductor has."""
        exec(SWITCH, vars(module))  # noqa: S102  a constant


def test_other_finders_are_asked_as_ever(settings: Imported) -> None:
    """Where their loader can't be changed the module is what they say."""
    sys.meta_path.insert(1, Odd())
    module = settings("")
    assert type(module.__loader__).__name__ == Slotted.__name__
    assert module.cpp.vec_isa_ok is None


PROGRAM = """
import importlib.util, sys, threading
sys.path.insert(0, sys.argv[2])
spec = importlib.util.spec_from_file_location("torchkiln_startup", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
inside = threading.Event(); sys.inside = inside
def whole(): import torch._inductor
def settings(): inside.wait(); import torch._inductor.config
threads = [threading.Thread(target=each, daemon=True) for each in (whole, settings)]
for each in threads: each.start()
for each in threads: each.join(20)
print(not any(each.is_alive() for each in threads))
"""


def test_threads_that_import_inductor_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """One imports the package, which takes its time and more imports; another its settings in the meantime."""
    package = tmp_path / "torch" / "_inductor"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (package / "__init__.py").write_text("import sys, time\nsys.inside.set()\ntime.sleep(0.5)\nfrom . import other\n")
    (package / "other.py").touch()
    (package / "config.py").write_text(SWITCH)
    done = process.run([sys.executable, "-c", PROGRAM, str(startup.__file__), str(tmp_path)], env={})
    assert done.stdout == b"True\n", done.stderr.decode()
