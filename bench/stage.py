"""What every contestant starts from: the rows, their wheels and bases at hand, and a folder to work in."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln import pipeline, planning
from torchkiln.errors import HostError
from torchkiln.oci.image import recorded
from torchkiln.specs import BaseSpec
from torchkiln.stacking import NVIDIA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torchkiln.lock.lockfile import Pin
    from torchkiln.matrix.target import Target
    from torchkiln.oci.image import Layer
    from torchkiln.project import Project

STEPS = ("1", "2", "3", "4")
"""Folders of a peer's context: two halves of NVIDIA's wheels, torch and its own, and what is small and changes."""
LARGE = ("torch", "torchvision", "torchaudio", "triton", "pytorch-triton")

UNSTATED = 1 << 30
"""Bytes of a wheel whose size the lock does not know: torch of an index that does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row, its wheels, and the base that lies ready."""

    target: Target
    pins: tuple[Pin, ...]
    wheels: Mapping[str, Path]
    """By sha256."""
    base: Layer
    base_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The project whose cache holds what the rows need, and a folder of our own."""

    project: Project
    rows: tuple[Row, ...]
    work: Path

    @property
    def row(self) -> Row:
        """The one that benchmarks of a single row use."""
        return self.rows[0]


def weight(project: Project, targets: Sequence[Target]) -> int:
    """Bytes of the wheels of rows, each once; nothing is fetched. What nobody states counts as a large one."""
    pins = {pin.sha256: pin for target in targets for pin in planning.locked(project, target)[0].pins}
    return sum(pin.size or UNSTATED for pin in pins.values())


@contextmanager
def prepared(project: Project, targets: Sequence[Target]) -> Iterator[Stage]:
    """Fetch the rows' wheels and make their bases, as far as the cache has none; the folder goes at the end.

    It lies in the cache, on one disk with the wheels, so that those need not be copied.
    """
    rows = tuple(_row(project, target) for target in targets)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=project.home.temporary, ignore_cleanup_errors=True) as work:
        yield Stage(project=project, rows=rows, work=Path(work))


def _row(project: Project, target: Target) -> Row:
    wheels = pipeline.wheels(project, target)
    pipeline.base(project, target)
    lock, _ = planning.locked(project, target)
    spec = planning.planned(project, target).layers[0]
    base = recorded(project.home.lookup(spec.key))
    if not isinstance(spec, BaseSpec) or base is None:
        what = f"{target.id} has a base that others made"
        raise HostError(what, remedy="take a row whose base is Debian's: its one layer goes to all contestants")
    return Row(target=target, pins=lock.pins, wheels=wheels, base=base, base_key=spec.key)


def need(folder: Path, gigabytes: float) -> None:
    """HostError before something is begun that the disk can't hold."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        what = f"this takes about {gigabytes:.0f} GB, and {free:.0f} GB are free"
        raise HostError(what, where=str(folder), remedy="TORCHKILN_HOME on a larger disk, ./inv gc, or a smaller row")


def split(pins: Sequence[Pin]) -> dict[str, list[Pin]]:
    """Which step of a split Dockerfile installs which wheel."""
    steps: dict[str, list[Pin]] = {step: [] for step in STEPS}
    for pin in sorted(pins, key=lambda pin: (-pin.weight, pin.name)):
        halves = [sum(one.weight for one in steps[step]) for step in STEPS[:2]]
        lighter = STEPS[halves.index(min(halves))]
        steps[lighter if pin.name.startswith(NVIDIA) else "3" if pin.name in LARGE else "4"].append(pin)
    return steps


def context(row: Row, folder: Path) -> Path:
    """What a peer's build is given: per step a folder of wheels and a list of requirements, hard links if possible.

    BuildKit is sent only what changed since it was last given a folder of that path: it has to be the same one.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for step, pins in split(row.pins).items():
        (folder / step).mkdir(parents=True)
        for pin in pins:
            link(row.wheels[pin.sha256], folder / step / pin.filename)
        (folder / step / "requirements.txt").write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins))
    return folder


def link(path: Path, place: Path) -> None:
    """The same file under another name, or a copy where the disk is another."""
    try:
        os.link(path, place)
    except OSError:
        shutil.copyfile(path, place)


def changed(row: Row, pin: Pin, path: Path) -> Row:
    """The row with another wheel in the place of one."""
    (old,) = (one for one in row.pins if one.name == pin.name)
    pins = tuple(pin if one == old else one for one in row.pins)
    return replace(row, pins=pins, wheels={**row.wheels, pin.sha256: path})
