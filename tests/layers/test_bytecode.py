"""Bytecode that Python really uses, the same wherever it is compiled, noticed as stale once a module is edited."""

from __future__ import annotations

import importlib.util
import marshal
import os
import types
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.toys import SITE, make_wheel, pin, unpacked
from torchkiln import rootfs, specs
from torchkiln.engines import Command
from torchkiln.engines.sandbox import Sandbox
from torchkiln.errors import WheelError
from torchkiln.layers import bytecode, compiler, environment, wheel
from torchkiln.oci.image import Config, Image
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.layers.conftest import Made
    from torchkiln.home import Home
    from torchkiln.layers.bytecode import Interpreter
    from torchkiln.oci.image import Layer

FILES = {
    "toy/__init__.py": "from toy.deep import answer\n",
    "toy/deep/__init__.py": "answer = 42\nnames = {'a', 'b', 'c'}\n",
    "toy/future.py": "x = f'{'quotes of 3.12'}'\n",
    "toy/data.txt": "no module",
    "{data}/scripts/run.py": "#!python\nprint(1)\n",
    "{data}/purelib/extra/__init__.py": "spread = True\n",
}


def spec(*paths: Path, python: str = "3.11.2") -> specs.BytecodeSpec:
    """Bytecode of these wheels."""
    return specs.BytecodeSpec(pins=tuple(pin(path) for path in paths), python=python)


def located(*paths: Path) -> dict[str, Path]:
    """Where the wheels lie."""
    return {pin(path).sha256: path for path in paths}


def test_modules_are_what_lands_in_site_packages(tmp_path: Path) -> None:
    """Scripts and data are no modules; `.data` folders count where they go; two equal copies count once."""
    one = make_wheel(tmp_path / "one", "toy", files=FILES)
    two = make_wheel(tmp_path / "two", "other", files={"toy/__init__.py": FILES["toy/__init__.py"], "z.py": ""})
    found = bytecode.modules([two, one])
    assert [(module.wheel, module.path) for module in found] == [
        (two, f"{SITE}/toy/__init__.py"),
        (two, f"{SITE}/z.py"),
        (one, f"{SITE}/extra/__init__.py"),
        (one, f"{SITE}/toy/deep/__init__.py"),
        (one, f"{SITE}/toy/future.py"),
    ]
    assert found[2].member == "toy-1.0.data/purelib/extra/__init__.py"


def test_a_module_of_any_size_is_not_compiled(tmp_path: Path) -> None:
    """A few kilobytes of a wheel may inflate to gigabytes of source, and compiling takes many times as much."""
    fits, more = b"#" * bytecode.LARGEST, b"#" * (bytecode.LARGEST + 1)
    (module,) = bytecode.modules([make_wheel(tmp_path, files={"toy/fits.py": fits, "toy/more.py": more})])
    assert module.path == f"{SITE}/toy/fits.py"


def test_names(tmp_path: Path) -> None:
    """The .pyc lies beside its source, tracebacks show the path that sys.path has."""
    (module,) = bytecode.modules([make_wheel(tmp_path, files={"toy/__init__.py": ""})])
    assert module.cached("3.11") == f"{SITE}/toy/__pycache__/__init__.cpython-311.pyc"
    assert module.embedded("3.11") == "/opt/venv/lib/python3.11/site-packages/toy/__init__.py"


def test_a_pyc_is_of_the_timestamp_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags zero, the layers' time, the source's size (PEP 552), whatever SOURCE_DATE_EPOCH says."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    data = compiler.compiled(b"x = 1\n", "/opt/x.py", specs.LAYER_TIME)
    header = importlib.util.MAGIC_NUMBER + bytes(4) + specs.LAYER_TIME.to_bytes(4, "little") + b"\6\0\0\0"
    assert data[:16] == header
    code = marshal.loads(data[16:])  # noqa: S302  our own
    assert isinstance(code, types.CodeType)
    assert code.co_filename == "/opt/x.py"


@pytest.mark.parametrize("source", [b"x = (\n", b"\0", b"\xff\xfe", b"# coding: nonsense\n"])
def test_what_is_no_module_has_no_bytecode(source: bytes) -> None:
    """A file that does not compile is left out, as torch ships one for a later Python."""
    assert compiler.compiled(source, "/opt/x.py", 0) == b""


def test_portions_depend_on_one_wheel_alone(tmp_path: Path) -> None:
    """What a process compiles is cut by a fixed count within a wheel, never by cores or by what lies beside it."""
    many = {f"toy/m{number:04}.py": "" for number in range(bytecode.PORTION + 1)}
    one = make_wheel(tmp_path, "toy", files=many)
    two = make_wheel(tmp_path, "other", files={"other.py": ""})
    alone = list(bytecode._portions(bytecode.modules([one])))
    assert [len(portion) for portion in alone] == [bytecode.PORTION, 1]
    assert list(bytecode._portions(bytecode.modules([two, one])))[1:] == alone


def test_an_interpreter_is_found_in_its_place_and_nowhere_else(tmp_path: Path) -> None:
    """It and its loader are the tree's own files; a link that leads out of the tree would start another program."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    loader = tree / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    for path in (loader, tree / "usr/local/bin/python3.12", outside):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = bytecode._inside(tree, "3.12", "/usr/local/bin/python3")
    assert found is not None
    assert (found.command[0], found.command[-1]) == (str(loader), str(tree / "usr/local/bin/python3.12"))
    assert found.env == {"PYTHONHOME": str(tree / "usr/local")}
    assert bytecode._inside(tree, "3.12", "/usr/bin/python3") is None
    for path in (loader, tree / "usr/local/bin/python3.12"):
        path.unlink()
        path.symlink_to(outside)
        assert bytecode._inside(tree, "3.12", "/usr/local/bin/python3") is None
        path.unlink()
        path.touch()


# By the interpreter of a real base.


@pytest.fixture
def interpreter(bookworm: Made) -> Interpreter:
    """The base's own."""
    return bytecode.interpreter(bookworm.home, bookworm.store, bookworm.result.layers, "3.11.2")


def build(home: Home, interpreter: Interpreter, *paths: Path) -> dict[str, bytes]:
    """Content of the bytecode layer by path."""
    store = Store(home.store)
    layer = bytecode.build(home, store, spec(*paths), located(*paths), interpreter)
    found = unpacked(store, layer)
    assert {entry.mode for entry, _ in found.values() if entry.isreg()} == {0o664}
    assert {entry.mode for name, (entry, _) in found.items() if entry.isdir() and name.startswith("opt/venv")} == {
        0o775
    }
    return {name: data for name, (entry, data) in found.items() if entry.isreg()}


@pytest.mark.network
def test_the_interpreter_is_the_bases_own(bookworm: Made, interpreter: Interpreter) -> None:
    """Not the one that runs this test, though it may have the same version."""
    tree = rootfs.unpack(bookworm.home, bookworm.store, bookworm.result.layers[0])
    assert str(tree / "usr/bin/python3.11") in interpreter.command
    assert interpreter.asked() == "3.11.2"
    assert interpreter.version == ""


@pytest.mark.network
def test_one_file_for_each_module_that_compiles(home: Home, interpreter: Interpreter, tmp_path: Path) -> None:
    """Judged by the files written: a module of another Python is left out and the rest is there."""
    found = build(home, interpreter, make_wheel(tmp_path, files=FILES))
    assert sorted(found) == [
        f"{SITE}/extra/__pycache__/__init__.cpython-311.pyc",
        f"{SITE}/toy/__pycache__/__init__.cpython-311.pyc",
        f"{SITE}/toy/deep/__pycache__/__init__.cpython-311.pyc",
    ]
    assert list(home.temporary.iterdir()) == []


@pytest.mark.network
def test_bytes_depend_on_wheels_and_interpreter_alone(
    home: Home, interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another hash seed, zone, umask, epoch, core count or neighbour changes nothing."""
    files = {f"toy/m{number}.py": f"a = {{'x', 'y{number}', 'z'}}\ndef f(b): return b in a\n" for number in range(60)}
    path, other = make_wheel(tmp_path, files=files), make_wheel(tmp_path, "other", files={"other.py": "y = 'x'\n"})
    first = build(home, interpreter, path)
    for name, value in {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "1", "LANG": "C"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bytecode, "_cores", lambda: 1)
    umask = os.umask(0o077)
    try:
        again = build(home, interpreter, other, path)
    finally:
        os.umask(umask)
    assert {name: again[name] for name in first} == first


@pytest.mark.network
def test_a_damaged_wheel_is_named(home: Home, interpreter: Interpreter, tmp_path: Path) -> None:
    """A member that does not inflate is an error about that file, and nothing is left."""
    path = make_wheel(tmp_path, files={"toy/__init__.py": "x = 1\n" * 999})
    good = located(path)
    asked = spec(path)
    data = path.read_bytes()
    place = data.index(b"toy/__init__.py") + len("toy/__init__.py") + 4
    path.write_bytes(data[:place] + b"\xff\xff\xff\xff" + data[place + 4 :])
    with pytest.raises(WheelError, match=r"toy-1\.0"):
        bytecode.build(home, Store(home.store), asked, good, interpreter)
    assert list(home.temporary.iterdir()) == []


@pytest.mark.network
@pytest.mark.sandbox
def test_python_uses_it_until_a_module_is_edited(bookworm: Made, tmp_path: Path) -> None:
    """Every module of the wheel is loaded from bytecode; an edit in a derived image takes effect."""
    path = make_wheel(tmp_path, files=FILES)
    home, store, base = bookworm.home, bookworm.store, bookworm.result.layers[0]
    files = wheel.build(store, specs.WheelSpec(pins=(pin(path),)), located(path))
    venv = environment.build(store, specs.EnvironmentSpec(python="3.11", protected=()))
    (compiled,) = bytecode.build_all(home, store, [base], [spec(path)], located(path)).values()
    layers: tuple[Layer, ...] = (base, files, venv, compiled)
    image = Image(config=Config(user="1000:0", env={"PATH": "/opt/venv/bin:/usr/bin:/bin"}), layers=layers)
    engine = Sandbox(partial(rootfs.tree, home, store))
    loaded = "python -v -c 'import toy, extra, textwrap' 2>&1 | sed -n 's/^# code object from //p'"
    outcome = engine.run(image, Command(argv=("sh", "-c", f"{loaded} | grep -E 'toy|extra|textwrap'")))
    site = "/opt/venv/lib/python3.11/site-packages"
    assert sorted(outcome.stdout.decode().split()) == [
        f"'{site}/extra/__pycache__/__init__.cpython-311.pyc'",
        f"'{site}/toy/__pycache__/__init__.cpython-311.pyc'",
        f"'{site}/toy/deep/__pycache__/__init__.cpython-311.pyc'",
        "'/usr/lib/python3.11/__pycache__/textwrap.cpython-311.pyc'",
    ], outcome
    edit = f"echo 'answer = 43' >{site}/toy/deep/__init__.py && python -c 'import toy; print(toy.answer)'"
    assert engine.run(image, Command(argv=("sh", "-c", edit))).stdout == b"43\n"
