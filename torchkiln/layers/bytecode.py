"""Modules of wheels → a layer of .pyc files, compiled by the image's own interpreter straight out of the wheels.

The timestamp form (PEP 552) with the layers' fixed time: a module edited in a derived image is noticed. Bytes depend
on wheels and interpreter alone: modules are compiled in sorted order, `PORTION` of them in a fresh process, so that
neither the number of cores nor another wheel plays a part (marshal's output depends on what its process did before).
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln import process, rootfs
from torchkiln.console import note, warn
from torchkiln.errors import HostError, WheelError
from torchkiln.layers import compiler, install, members
from torchkiln.layers.archive import Entry, order, stretch, write_layer
from torchkiln.specs import INTERPRETER, LAYER_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from torchkiln.home import Home
    from torchkiln.layers.archive import Content
    from torchkiln.layers.install import File
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store
    from torchkiln.specs import BytecodeSpec

PORTION = 400
"""Modules compiled by one process; changing it changes the layers' bytes, so it needs a new BytecodeSpec.FORMAT."""
LARGEST = 16 << 20
"""Bytes of a module that is compiled, which takes many times as much memory; a larger one stays without bytecode."""
COMPILER = Path(__file__).with_name("compiler.py")
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """How to start a Python of the image's version on this machine."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    version: str = ""
    """Full, of one that is not the base's own: another patch release may write other bytecode."""

    def asked(self) -> str:
        """The full version that it answers with; empty if it does not start."""
        try:
            said = process.run([*self.command, "-c", _ASK], env=self.env, timeout=60)
        except (HostError, OSError):
            return ""
        return said.stdout.decode(errors="replace").strip() if said.returncode == 0 else ""


_ASK = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
_FIXED = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
_OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")
"""No site-packages, no user's variables (the environment is our own): the same modules are loaded everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A source file in a wheel and where its bytecode goes."""

    wheel: Path
    member: str
    path: str
    """Of the source, in the image."""

    def cached(self, minor: str) -> str:
        """Path of the .pyc (PEP 3147)."""
        folder, _, name = self.path.rpartition("/")
        return f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-{minor.replace('.', '')}.pyc"

    def embedded(self, minor: str) -> str:
        """The file name that tracebacks show: by the link `lib/python3.X` that sys.path names, not the real folder."""
        return "/" + self.path.replace("/lib/python/", f"/lib/python{minor}/", 1)


def build(
    home: Home,
    store: Store,
    spec: BytecodeSpec,
    paths: Mapping[str, Path],
    interpreter: Interpreter,
    *,
    processes: Executor | None = None,
) -> Layer:
    """The layer of a spec's wheels, found by sha256 in `paths`; modules that do not compile have no bytecode.

    `processes` bounds how many compile at once, for builds that run side by side. WheelError if a wheel is damaged,
    HostError if the interpreter fails.
    """
    if processes is None:
        with ThreadPoolExecutor(_cores()) as own:
            return build(home, store, spec, paths, interpreter, processes=own)
    minor = minor_of(spec.python)
    found = modules(paths[pin.sha256] for pin in spec.pins)
    portions = list(_portions(found))
    with tempfile.TemporaryDirectory(prefix="bytecode-", dir=home.temporary) as folder:
        outputs = [Path(folder) / str(number) for number in range(len(portions))]
        list(processes.map(partial(_compile, interpreter, minor), portions, outputs))
        entries = [
            entry
            for portion, output in zip(portions, outputs, strict=True)
            for entry in _entries(portion, output, minor)
        ]
        if len(entries) < len(found):
            note(f"{spec.title}: {len(entries)} of {len(found)} modules compile under Python {minor}")
        return write_layer(store, spec.title, sorted(entries, key=lambda pair: order(pair[0].path)))


def build_all(
    home: Home,
    store: Store,
    base: Sequence[Layer],
    specs: Sequence[BytecodeSpec],
    paths: Mapping[str, Path],
    *,
    place: str = INTERPRETER,
) -> dict[str, Layer]:
    """The layers of specs by their keys, side by side, compiled by the interpreter of their base; raises as `build`.

    `place` is where the base has it.
    """
    if not specs:
        return {}
    start = interpreter(home, store, base, specs[0].python, place=place)
    largest = sorted(specs, key=lambda spec: -sum(pin.weight for pin in spec.pins))
    with ThreadPoolExecutor(_cores()) as processes, ThreadPoolExecutor(_cores()) as builds:
        made = builds.map(lambda spec: build(home, store, spec, paths, start, processes=processes), largest)
        return {spec.key: layer for spec, layer in zip(largest, made, strict=True)}


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def minor_of(version: str) -> str:
    """`3.11` of `3.11.2`."""
    return ".".join(version.split(".")[:2])


def modules(wheels: Iterable[Path]) -> list[Module]:
    """Every module that these wheels put into site-packages, wheel by wheel, sorted by path; equal copies once."""
    found: dict[str, Module] = {}
    for path in wheels:
        with members.opened(path) as wheel:
            for file in install.install(wheel).files:
                if isinstance(file.content, members.Member) and _is_module(file):
                    found.setdefault(file.path, Module(wheel=path, member=file.content.name, path=file.path))
    ordered = {path: number for number, path in enumerate(dict.fromkeys(module.wheel for module in found.values()))}
    return sorted(found.values(), key=lambda module: (ordered[module.wheel], order(module.path)))


def _is_module(file: File) -> bool:
    inside = file.path.startswith(f"{install.SITE}/") and "/__pycache__/" not in file.path
    return inside and file.path.endswith(".py") and file.size <= LARGEST


def _portions(found: Sequence[Module]) -> Iterator[tuple[Module, ...]]:
    """What one process compiles: modules of one wheel, at most `PORTION`."""
    for wheel in dict.fromkeys(module.wheel for module in found):
        own = tuple(module for module in found if module.wheel == wheel)
        yield from (own[start : start + PORTION] for start in range(0, len(own), PORTION))


def _compile(interpreter: Interpreter, minor: str, portion: Sequence[Module], output: Path) -> None:
    """Compile a portion in one process, into a file of sizes and contents."""
    wheel = portion[0].wheel
    names = [[module.member, module.embedded(minor)] for module in portion]
    job = {"wheel": str(wheel), "time": LAYER_TIME, "modules": names, "output": str(output)}
    command, given = [*interpreter.command, *_OPTIONS, str(COMPILER)], json.dumps(job).encode() + b"\n"
    done = process.run(command, env={**_FIXED, **interpreter.env}, stdin=given)
    said = done.stderr.decode(errors="replace").strip()[-500:]
    if done.returncode == compiler.DAMAGED:
        raise WheelError(
            f"{wheel.name}: {said}", where=str(wheel), remedy="the wheel itself is bad: pin another version"
        )
    if done.returncode:
        raise HostError(f"compiling modules of {wheel.name} ended with status {done.returncode}: {said}")


def _entries(portion: Sequence[Module], output: Path, minor: str) -> Iterator[tuple[Entry, Content]]:
    """What the processes wrote, by their sizes; nothing for a module that did not compile."""
    with output.open("rb") as stream:
        for module in portion:
            (size,) = _SIZE.unpack(stream.read(_SIZE.size))
            place = stream.tell()
            stream.seek(size, os.SEEK_CUR)
            if size:
                entry = Entry(path=module.cached(minor), kind="file", mode=0o664, size=size)
                yield entry, partial(stretch, output, place, size)


def interpreter(
    home: Home, store: Store, base: Sequence[Layer], python: str, *, place: str = INTERPRETER
) -> Interpreter:
    """The interpreter of a base's layers, started by its own loader and libraries; else one of that minor at hand.

    No engine is needed, nor privilege; only another kind of machine, or a cache folder that forbids execution, leaves
    the second way, which says so; of the base's own patch release if there is one, since that writes the same bytes.
    """
    minor = minor_of(python)
    tree = rootfs.unpack(home, store, base[0]) if len(base) == 1 else rootfs.merge(home, store, base)
    own = _inside(tree, minor, place)
    if own and minor_of(own.asked()) == minor:
        return own
    others = _at_hand(minor)
    if not others:
        raise HostError(
            f"no Python {minor} at hand compiles for this base",
            remedy=f"apt-get install python{minor}, or let uv have one",
        )
    best = max(others, key=lambda other: other.version == python)
    why = "" if best.version == python else f", and may write other bytecode: it is {best.version}, not {python}"
    warn(f"the base's Python does not start here: {best.command[0]} compiles instead{why}")
    return best


def _at_hand(minor: str) -> list[Interpreter]:
    """Those of that minor which this machine has."""
    env = {"PATH": os.environ.get("PATH", "")}
    paths = dict.fromkeys(filter(None, (sys.executable, shutil.which(f"python{minor}"))))
    found = [Interpreter(command=(path,), env=env) for path in paths]
    named = [replace(each, version=each.asked()) for each in found]
    return [each for each in named if minor_of(each.version) == minor]


def _inside(tree: Path, minor: str, place: str) -> Interpreter | None:
    """The interpreter of an unpacked base: through its own dynamic loader, so nothing of the host's is used.

    Neither is reached through a link that leads out of the tree: another program would be started.
    """
    folder = (tree / place.lstrip("/")).parent
    python = folder / f"python{minor}"
    loaders = [
        path for path in sorted((tree / "usr" / "lib").glob("*-linux-gnu*/ld-linux-*.so.*")) if _within(path, tree)
    ]
    if not loaders or not python.is_file() or not _within(python, tree):
        return None
    libraries = f"{folder.parent / 'lib'}:{loaders[0].parent}"
    command = (str(loaders[0]), "--library-path", libraries, str(python))
    return Interpreter(command=command, env={"PYTHONHOME": str(folder.parent)})


def _within(path: Path, tree: Path) -> bool:
    return path.resolve().is_relative_to(tree.resolve())
