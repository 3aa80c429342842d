"""Torchkiln as a user runs it: its command line, a checkout, and a cache that holds what the others are given too."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bench import stage as stages
from torchkiln import home as homes
from torchkiln import planning, process, rootfs
from torchkiln.errors import HostError
from torchkiln.layers import boundarylock
from torchkiln.lock import layerlock
from torchkiln.oci.image import recorded
from torchkiln.oci.store import Store
from torchkiln.project import Project

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence

    from bench.stage import Row, Stage
    from torchkiln.home import Home
    from torchkiln.lock.lockfile import Pin
    from torchkiln.matrix.target import Target

PARTS = ("tasks.py", "matrix.yaml", "pyproject.toml", "images", "validate", "torchkiln")
"""Of a checkout; what a build reads."""
LAYERS, BOUNDARIES = "images/locks/layers.lock", "images/locks/boundaries.lock"
"""What layers become, and what spares inflating for them."""
NOTHING: Mapping[str, str] = MappingProxyType({})
LASTING = ("base", "wheel", "bytecode", "toolkit")
"""Kinds of layers that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kiln:
    """A checkout and a cache."""

    root: Path
    home: Home

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a task as `./inv` does."""
        command = [sys.executable, "-m", "invoke", "--search-root", str(self.root), *arguments]
        return process.start(command, cwd=self.root, env={**os.environ, "TORCHKILN_HOME": str(self.home.root)})

    def run(self, *arguments: str) -> str:
        """What a task printed; HostError with its last words if it fails."""
        with self.started(*arguments) as running:
            return ended(running)

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A task that runs; it is told to end if the body fails."""
        running = self.start(*arguments)
        try:
            yield running
        except BaseException:
            running.terminate()
            running.wait()
            raise

    def project(self) -> Project:
        """The checkout and the cache, as the package sees them."""
        return Project(root=self.root, home=self.home, environment=dict(os.environ))

    def base_key(self, row: Row) -> str:
        """What names the row's base, as the checkout's locks are now."""
        return planning.planned(self.project(), row.target).layers[0].key

    def build(self, row: Row, *options: str, push: str) -> dict[str, Any]:
        """Build and push without running anything: the peers' images are not run either; an entry of `build --json`."""
        (entry,) = json.loads(self.run(*building(row, *options, push=push)))
        return dict(entry)


def ended(running: subprocess.Popen[bytes]) -> str:
    """What it printed when it ended; HostError with its last words if it failed."""
    out, said = running.communicate()
    if running.returncode != 0:
        last = said.decode(errors="replace").strip()[-2000:]
        raise HostError(f"a build of ours ended with {running.returncode}: {last}")
    return out.decode()


def building(row: Row, *options: str, push: str) -> list[str]:
    """The words of that build."""
    return ["build", "--target", row.target.id, "--no-validate", "--json", "--push", push, *options]


def checkout(root: Path, folder: Path, *, known: Mapping[str, str] = NOTHING) -> Path:
    """A copy of what a build reads, to be edited; nothing is known of layers but what is given, file by file."""
    folder.mkdir(parents=True)
    for name in PARTS:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, folder / name)
    for name in (LAYERS, BOUNDARIES):
        (folder / name).unlink(missing_ok=True)
    for name, text in known.items():
        (folder / name).write_text(text)
    return folder


@contextmanager
def fresh(stage: Stage, *, known: Mapping[str, str] = NOTHING, empty: bool = False) -> Iterator[Kiln]:
    """A checkout and a cache with the rows' wheels and bases and nothing else; `empty`: without these too."""
    folder = Path(tempfile.mkdtemp(prefix="ours-", dir=stage.work))
    try:
        home = homes.prepare(homes.Home(folder / "home"))
        for row in () if empty else stage.rows:
            give(stage, row, home)
        yield Kiln(root=checkout(stage.project.root, folder / "checkout", known=known), home=home)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def give(stage: Stage, row: Row, home: Home) -> None:
    """A row's wheels and base."""
    for sha256, path in row.wheels.items():
        wheel = home.wheel(sha256, path.name)
        if not wheel.exists():
            wheel.parent.mkdir(parents=True, exist_ok=True)
            stages.link(path, wheel)
    give_base(stage.project.store, row, home, dict(stage.project.home.lookup(row.base_key) or {}))


def give_base(store: Store, row: Row, home: Home, entry: dict[str, Any]) -> None:
    """A base's blob, its entry in the index, and its tree: engines are given theirs unpacked too."""
    place = Store(home.store).path(row.base.descriptor.digest)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        stages.link(store.path(row.base.descriptor.digest), place)
    home.record(row.base_key, entry)
    rootfs.unpack(home, Store(home.store), row.base)


def learned(kiln: Kiln, row: Row, entry: dict[str, Any]) -> Mapping[str, str]:
    """What the locks say once a row's layers are known, file by file: all that are made from locked things."""
    found = {one["key"]: recorded(kiln.home.lookup(one["key"])) for one in entry["layers"]}
    lasting = {key: layer for key, layer in found.items() if layer and key.split("-")[0] in LASTING}
    large = boundarylock.large(kiln.home.boundaries, row.wheels)
    return {LAYERS: layerlock.render(lasting), BOUNDARIES: boundarylock.render(large)}


def repin(checkout: Path, target: Target, old: Sequence[Pin], new: Sequence[Pin]) -> None:
    """Write the pins that differ into a checkout's lock."""
    path = checkout / "images" / "locks" / target.lock_name
    for before, after in zip(old, new, strict=True):
        if before != after:
            edit(path, _line(before), _line(after))


def _line(pin: Pin) -> str:
    return f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256} # {pin.filename}, {pin.size} bytes"


def edit(path: Path, old: str, new: str) -> None:
    """Put other words into a file of a checkout; HostError if they are not there, or more than once."""
    text = path.read_text()
    if text.count(old) != 1:
        raise HostError(f"{old!r} stands {text.count(old)} times in {path.name}")
    path.write_text(text.replace(old, new))
