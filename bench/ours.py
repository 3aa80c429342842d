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
from typing import TYPE_CHECKING, Any

from bench import stage as stages
from torchkiln import home as homes
from torchkiln import process
from torchkiln.errors import HostError
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from bench.stage import Row, Stage
    from torchkiln.home import Home

PARTS = ("tasks.py", "matrix.yaml", "pyproject.toml", "images", "validate", "torchkiln")
"""Of a checkout; what a build reads."""
LAYERS = "images/locks/layers.lock"
"""What layers become, as it is committed."""


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
        running = self.start(*arguments)
        try:
            out, said = running.communicate()
        except BaseException:
            running.terminate()
            running.wait()
            raise
        if running.returncode != 0:
            last = said.decode(errors="replace").strip()[-2000:]
            raise HostError(f"./inv {' '.join(arguments)} ended with {running.returncode}: {last}")
        return out.decode()

    def build(self, row: Row, *options: str, push: str) -> dict[str, Any]:
        """Build and push without running anything: the peers' images are not run either; an entry of `build --json`."""
        (entry,) = json.loads(self.run(*building(row, *options, push=push)))
        return dict(entry)


def building(row: Row, *options: str, push: str) -> list[str]:
    """The words of that build."""
    return ["build", "--target", row.target.id, "--no-validate", "--json", "--push", push, *options]


def checkout(root: Path, folder: Path, *, known: bool = False) -> Path:
    """A copy of what a build reads, to be edited; without what layers become, unless that is to be known."""
    folder.mkdir(parents=True)
    for name in PARTS:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, folder / name)
    if not known:
        (folder / LAYERS).unlink(missing_ok=True)
    return folder


@contextmanager
def fresh(stage: Stage, *, known: bool = False, empty: bool = False) -> Iterator[Kiln]:
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
    """A base's blob, and its entry in the index."""
    place = Store(home.store).path(row.base.descriptor.digest)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        stages.link(store.path(row.base.descriptor.digest), place)
    home.record(row.base_key, entry)


def edit(path: Path, old: str, new: str) -> None:
    """Put other words into a file of a checkout; HostError if they are not there, or more than once."""
    text = path.read_text()
    if text.count(old) != 1:
        raise HostError(f"{old!r} stands {text.count(old)} times in {path.name}")
    path.write_text(text.replace(old, new))
