"""How fast wheels become layers, beside the least that any tool must do with them.

`python bench/assemble.py FOLDER` builds a layer of each wheel in the folder, then inflates every member with ISA-L
and hashes both streams, doing nothing else, with as many workers. The ratio is what Torchkiln adds: tar headers,
block boundaries, RECORD's hashes, checksums, writing. Wanted: at most 2.0, in under 400 MB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import tempfile
import threading
import time
import zipfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isal import isal_zlib
from packaging.utils import parse_wheel_filename

from torchkiln.layers import members, pool, wheel
from torchkiln.lock.lockfile import Pin
from torchkiln.oci import digest
from torchkiln.oci.store import Store
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchkiln.oci.image import Layer

PIECE = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One comparison, on one machine, in one run."""

    wheels: int
    wheel_bytes: int
    layer_bytes: int
    unpacked_bytes: int
    member_bytes: int
    """What the floor inflated: the layers' content without tar headers."""
    workers: int
    repeats: int
    layers_seconds: float
    """Wheels to layers: the best of the repeats."""
    floor_seconds: float
    """Inflate and hash alone: the best of the repeats."""
    ratio: float
    """Of the two: what counts on a machine that does nothing else."""
    layers_cpu_seconds: float
    """User and system time of all workers, least of the repeats: hardly moved by what else the machine does."""
    floor_cpu_seconds: float
    cpu_ratio: float
    peak_mb: float
    """Resident memory of all processes together while making layers, pages they share counted once each."""


def measure(wheels: Sequence[Path], *, workers: int = 0, repeats: int = 1, folder: Path | None = None) -> Figures:
    """Build every wheel's layer and compare with the floor, alternating, after reading each file once."""
    paths = {digest.encoded(digest.of_file(path)[0]): path for path in wheels}
    specs = [WheelSpec(pins=(_pin(path, sha256),)) for sha256, path in paths.items()]
    largest = [(path,) for path in sorted(wheels, key=lambda path: -path.stat().st_size)]
    slow: list[tuple[float, float]] = []
    fast: list[tuple[float, float]] = []
    peaks: list[float] = []
    layers: tuple[Layer, ...] = ()
    for _ in range(repeats):
        with _timed(fast):
            total = sum(size for _, size in pool.each(floor, largest, workers=workers))
        with tempfile.TemporaryDirectory(dir=folder) as store, _peak(peaks), _timed(slow):
            layers = wheel.build_all(Store(Path(store)), specs, paths, workers=workers)
    (layers_seconds, layers_cpu), (floor_seconds, floor_cpu) = (
        map(min, zip(*times, strict=True)) for times in (slow, fast)
    )
    return Figures(
        wheels=len(wheels),
        wheel_bytes=sum(path.stat().st_size for path in wheels),
        layer_bytes=sum(layer.descriptor.size for layer in layers),
        unpacked_bytes=sum(layer.unpacked_size for layer in layers),
        member_bytes=total,
        workers=min(workers or len(os.sched_getaffinity(0)), len(wheels), pool.MOST),
        repeats=repeats,
        layers_seconds=round(layers_seconds, 2),
        floor_seconds=round(floor_seconds, 2),
        ratio=round(layers_seconds / floor_seconds, 2),
        layers_cpu_seconds=round(layers_cpu, 2),
        floor_cpu_seconds=round(floor_cpu, 2),
        cpu_ratio=round(layers_cpu / floor_cpu, 2),
        peak_mb=round(max(peaks) / (1 << 20), 1),
    )


def floor(path: Path) -> int:
    """Inflate every member and hash what goes in and what comes out; the bytes that came out."""
    packed, plain, total = hashlib.sha256(), hashlib.sha256(), 0
    buffer = memoryview(bytearray(PIECE))
    with members.opened(path) as archive:
        for member in archive.members.values():
            source, state = archive.source(member), isal_zlib.decompressobj(-15)
            while count := source(buffer):
                packed.update(buffer[:count])
                piece = buffer[:count] if member.method == zipfile.ZIP_STORED else state.decompress(buffer[:count])
                plain.update(piece)
                total += len(piece)
    return total


def _pin(path: Path, sha256: str) -> Pin:
    name, version, *_ = parse_wheel_filename(path.name)
    return Pin(name=name, version=str(version), sha256=sha256, filename=path.name, size=path.stat().st_size)


@contextmanager
def _timed(times: list[tuple[float, float]]) -> Iterator[None]:
    """Seconds by the clock, and by the processors of the children that ended meanwhile."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    yield
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    times.append((took, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime))


@contextmanager
def _peak(peaks: list[float]) -> Iterator[None]:
    """Sample the memory of this process and its children while the body runs."""
    ended = threading.Event()
    highest = 0

    def sample() -> None:
        nonlocal highest
        while not ended.wait(0.02):
            highest = max(highest, sum(_resident(process) for process in [os.getpid(), *_children()]))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        peaks.append(highest)


def _children() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [int(process) for task in tasks for process in (task / "children").read_text().split()]


def _resident(process: int) -> int:
    """Proportional set size: a page that n processes share counts 1/n for each."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10


def main() -> None:
    """Print the figures of a folder of wheels as a table, or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the wheels lie")
    parser.add_argument("--workers", type=int, default=0, help="processes; default: one per core")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--temporary", type=Path, help="where layers are written and deleted")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = asdict(
        measure(
            sorted(given.folder.glob("*.whl")), workers=given.workers, repeats=given.repeats, folder=given.temporary
        )
    )
    print(json.dumps(figures) if given.json else "\n".join(f"{name:18} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
