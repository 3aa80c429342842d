"""Rules about the trio's wheels: which exist, for which accelerator, Python, machine and C library."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from torchkiln.matrix import facts
from torchkiln.matrix.rules.finding import error, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.matrix.factfile import ReleaseFact
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.rules.finding import Finding
    from torchkiln.matrix.target import Target


def known_torch(target: Target, known: Facts) -> Iterator[Finding]:
    """The facts know the release."""
    torch = target.release.torch
    if facts.release(known, torch) is None:
        versions = [row.torch for row in known.releases]
        near = get_close_matches(torch, versions, n=1, cutoff=0) or versions[-1:]
        yield error(
            "known-torch",
            f"torch {torch} is not known",
            f"releases {versions[0]} to {versions[-1]}; {known.sources['releases']}",
            f"torch {near[0]}",
        )


def trio_pairing(target: Target, known: Facts) -> Iterator[Finding]:
    """Torchvision and torchaudio are those released with this torch."""
    pair = facts.release(known, target.release.torch)
    if pair is None:
        return
    source, vision = known.sources["releases"], target.release.torchvision
    if vision and vision not in {pair.torchvision, *pair.torchvision_also}:
        fact = f"torch {pair.torch} pairs with torchvision {pair.torchvision}; {source}"
        message = f"torchvision {vision} does not belong to torch {pair.torch}"
        yield error("trio-pairing", message, fact, f"torchvision {pair.torchvision}")
    yield from _audio(target.release.torchaudio, pair, source)


def _audio(audio: str, pair: ReleaseFact, source: str) -> Iterator[Finding]:
    message = f"torchaudio {audio} does not belong to torch {pair.torch}"
    none = f"no torchaudio was released for torch {pair.torch}; {facts.FREE_AUDIO} accepts torch>=2.11; {source}"
    if not audio:
        return
    if not pair.torchaudio and audio == facts.FREE_AUDIO:
        yield note("trio-pairing", f"torchaudio {audio} was not released with torch {pair.torch} but accepts it", none)
    elif not pair.torchaudio:
        yield error("trio-pairing", message, none, f"torchaudio {facts.FREE_AUDIO}, or none")
    elif audio != pair.torchaudio:
        fact = f"torch {pair.torch} pairs with torchaudio {pair.torchaudio}; {source}"
        yield error("trio-pairing", message, fact, f"torchaudio {pair.torchaudio}")
    elif pair.torchaudio_basis == "unpinned":
        message = f"torchaudio {audio} declares no torch: only the row's own pin keeps it beside torch {pair.torch}"
        yield note("trio-pairing", message, f"its metadata names no torch; {source}")


def variant_exists(target: Target, known: Facts) -> Iterator[Finding]:
    """There are wheels of this torch for this accelerator."""
    torch, variant = target.release.torch, target.accelerator.variant
    legal = facts.variants(known, torch)
    if legal and variant not in legal:
        fact = f"torch {torch} is built for {', '.join(legal)}; {known.sources['index_variants']}"
        yield error("variant-exists", f"torch {torch} has no {variant} build", fact)


def python_range(target: Target, known: Facts) -> Iterator[Finding]:
    """There are wheels of this torch for the base's Python."""
    row = facts.release(known, target.release.torch)
    if row and target.base.python not in row.python:
        fact = f"torch {row.torch} has wheels for Python {', '.join(row.python)}; {known.sources['releases']}"
        message = f"torch {row.torch} has no wheel for Python {target.base.python}"
        plain = [python for python in row.python if not python.endswith("t")]
        near = min(plain, key=lambda python: abs(_minor(python) - _minor(target.base.python)))
        yield error("python-range", message, fact, f"Python {near}")


def _minor(python: str) -> int:
    return int(python.split(".")[1])


def triton_python(target: Target, known: Facts) -> Iterator[Finding]:
    """Torch asks for Triton on this Python; without it nothing compiles for a GPU."""
    row = next((row for row in known.triton if facts.covers(row.torch, target.release.torch)), None)
    limit = row.triton_only_for_python.removeprefix("<") if row else "any"
    if target.accelerator.kind != "cpu" and limit != "any" and not facts.older(target.base.python, limit):
        message = f"torch {target.release.torch} comes without Triton on Python {target.base.python}: no torch.compile"
        fact = f"Triton only for Python below {limit}; {known.sources['releases']}"
        yield warning("triton-python", message, fact, f"Python below {limit}")


def glibc_floor(target: Target, known: Facts) -> Iterator[Finding]:
    """The base's C library is as new as the wheels need."""
    torch, variant = target.release.torch, target.accelerator.variant
    source = "PyPI" if target.accelerator.by_default else "index"
    rows = (row for row in known.floors if row.source in {source, "any"} and facts.covers(row.torch, torch))
    floor = next((row for row in rows if not row.variants or variant in row.variants), None)
    if floor and facts.older(target.base.glibc, floor.real_glibc):
        fact = f"torch {torch} {variant} needs glibc {floor.real_glibc}; {known.sources['wheel_floor']}"
        message = f"base {target.base.id} has glibc {target.base.glibc}, torch {torch} needs {floor.real_glibc}"
        yield error("glibc-floor", message, fact, f"a base with glibc {floor.real_glibc} or newer")


def machine(target: Target, known: Facts) -> Iterator[Finding]:
    """The facts are of machines that they name: wheels, floors and architectures differ on others."""
    if target.arch not in known.machines:
        message = f"rows for {target.arch} can't be built yet: what its wheels hold and need is not established"
        fact = f"the tables are of {', '.join(known.machines)}; {known.sources['machines']}"
        yield error("machine", message, fact, f"arch: {known.machines[0]}")
