"""How fast wheels become layers, beside the least that any tool must do with them."""

from __future__ import annotations

import hashlib
import os
import resource
import tempfile
import time
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from isal import isal_zlib

from bench import meter
from bench.contest import Bench, Column, Contestant, Cost
from bench.figures import OURS, Figures, Measured, Verdict, best, most
from torchkiln.errors import VerifyError
from torchkiln.layers import members, pool, wheel
from torchkiln.oci.store import Store
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.stage import Stage
    from torchkiln.oci.image import Layer

FLOOR = "floor"
KNOWN = f"{OURS}, layers known"
FORGOTTEN = f"{OURS}, boundaries forgotten"
PIECE = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Wheels that were read a moment ago, so that they lie in memory; what they become; and a folder to write to."""

    specs: tuple[WheelSpec, ...]
    paths: Mapping[str, Path]
    work: Path
    known: Mapping[str, Layer]
    boundaries: Path


@contextmanager
def contestants(stage: Stage) -> Iterator[Sequence[Contestant]]:
    """The floor; ours the first time, with all that is remembered, and with the layers alone."""
    job = prepared(tuple(WheelSpec(pins=(pin,)) for pin in stage.row.pins), stage.row.wheels, stage.work)
    yield (
        Contestant(name=OURS, what="the first time: all is checked", play=partial(first, job)),
        Contestant(name=FLOOR, what="inflates with ISA-L and hashes both streams, no more", play=partial(floor, job)),
        Contestant(name=KNOWN, what="copies, one hash", play=partial(again, job, job.boundaries)),
        Contestant(name=FORGOTTEN, what="inflates, one hash", play=partial(again, job, None)),
    )


def prepared(specs: tuple[WheelSpec, ...], paths: Mapping[str, Path], work: Path) -> Job:
    """What is known of the wheels, found by making the layers once."""
    boundaries = work / "boundaries"
    with tempfile.TemporaryDirectory(dir=work) as store:
        layers = wheel.build_all(Store(Path(store)), specs, paths, boundaries=boundaries)
    known = {spec.key: layer for spec, layer in zip(specs, layers, strict=True)}
    return Job(specs=specs, paths=paths, work=work, known=known, boundaries=boundaries)


def first(job: Job) -> Figures:
    """Make every layer, knowing nothing."""
    return made(job, {}, None)


def again(job: Job, boundaries: Path | None) -> Figures:
    """Make every layer, knowing what it becomes."""
    return made(job, job.known, boundaries)


def made(job: Job, known: Mapping[str, Layer], boundaries: Path | None) -> Figures:
    """Make every layer in an empty store; what is found is remembered in a new folder, if there is none."""
    with tempfile.TemporaryDirectory(dir=job.work) as work, timed() as figures, meter.memory(os.getpid()) as gauge:
        store, remembered = Store(Path(work) / "store"), boundaries or Path(work) / "boundaries"
        layers = wheel.build_all(store, job.specs, job.paths, known=known, boundaries=remembered)
    if [job.known[spec.key] for spec in job.specs] != list(layers):
        raise VerifyError("a layer is not what it was before")
    return {**figures, "bytes": gauge.highest}


def floor(job: Job) -> Figures:
    """What no tool can leave out, by as many workers as there are for layers, largest first as well."""
    largest = sorted(job.paths.values(), key=lambda path: -path.stat().st_size)
    with timed() as figures:
        for _ in pool.each(inflate, [(path,) for path in largest]):
            pass
    return figures


def inflate(path: Path) -> int:
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


@contextmanager
def timed() -> Iterator[Figures]:
    """Seconds by the clock, and of processors: those of the children that end meanwhile."""
    figures: Figures = {}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    yield figures
    figures["seconds"] = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures["cpu"] = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def wanted(found: Sequence[Measured]) -> tuple[Verdict, ...]:
    """Whether the figures are what this bench wants."""
    return (
        *beside("first time, by the clock", found, OURS, "seconds", 1.5),
        *beside("first time, by processor time", found, OURS, "cpu", 1.5),
        *beside("known layers, by the clock", found, KNOWN, "seconds", 0.6),
        *beside("known layers, by processor time", found, KNOWN, "cpu", 0.6),
        *most("bytes of memory at the peak", found, limit=300e6, figure="bytes", unit="bytes"),
    )


def beside(said: str, found: Sequence[Measured], name: str, figure: str, limit: float) -> tuple[Verdict, ...]:
    """One contestant as a part of the floor."""
    mine, least = best(found, figure, name), best(found, figure, FLOOR)
    if mine is None or not least:
        return ()
    return (Verdict(said=said, found=round(mine / least, 2), limit=limit, unit="of the floor"),)


BENCH = Bench(
    name="assemble",
    title="Assemble: cached wheels to layers, beside the floor",
    about="All processors; wheels lie in memory, layers are written and synced. The floor writes nothing.",
    columns=(
        Column(figure="seconds", heading="by the clock"),
        Column(figure="cpu", heading="processor time"),
        Column(figure="bytes", heading="memory at the peak", unit="MB"),
    ),
    contestants=contestants,
    wanted=wanted,
    cost=Cost(seconds=20, disk=1.1),
)
