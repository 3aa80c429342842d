"""`torchkiln-doctor`: what this container is, what the host gives it, and a verdict with a remedy for each cause."""

from __future__ import annotations

import json
import os
import platform
import pwd
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from validate import discovery, expect, host, runner, verdict
from validate.model import FAIL, NOT_RUN, PASS, Answer

CHECKS = (
    "host.*",
    "cache.*",
    "torch.import",
    "toolchain.*",
    "compile.generated",
    "gpu.device",
    "gpu.driver",
    "gpu.arch",
)
"""Seconds each, except for one cold compile; `validate --expect` asks the rest."""
PACKAGES = ("torch", "torchvision", "torchaudio", "triton", "numpy", "setuptools", "ninja")
SHM = 1 << 30
SUITE = Path(__file__).parent


@dataclass(frozen=True)
class Advice:
    """Something about the surroundings that a user should know, and what to do."""

    what: str
    do: str


def default_expectation() -> Path | None:
    """Where an image keeps its row: beside the suite."""
    path = SUITE.with_name("expect.json")
    return path if path.is_file() else None


def main(expectation: Path | None, *, as_json: bool, environ: Mapping[str, str]) -> int:
    """Ask, print one result, and exit as `validate` does."""
    row, problem = _row(expectation)
    facts = host.facts()
    advice = [
        *([Advice(problem, "restore the file, or give --expect")] if problem else []),
        *surroundings(environ, facts, row),
    ]
    answers = _asked(row, facts, environ)
    said = verdict.verdict(answers)
    if as_json:
        document = {"image": image(row), "host": facts, "advice": [vars(item) for item in advice]}
        print(json.dumps({**document, "checks": [item.to_json() for item in answers], "verdict": said}, default=str))
    else:
        print("\n".join(report(image(row), facts, advice, answers, said)))
    return verdict.EXITS[said]


def _row(path: Path | None) -> tuple[expect.Expect, str]:
    if path is None:
        return expect.Expect(), ""
    try:
        return expect.read(path), ""
    except (OSError, ValueError, TypeError) as error:
        return expect.Expect(), f"the row of this image cannot be read: {error}"


def _asked(row: expect.Expect, facts: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Answer, ...]:
    runner.adopt_orphans()
    with runner.run_folder() as folder:
        run = runner.Run(expect=replace(row, required=CHECKS), host=facts, folder=folder, environ=dict(environ))
        return runner.run_all(discovery.discover(), run, CHECKS, lambda _answer: None)


def image(row: expect.Expect) -> dict[str, Any]:
    """What is installed, by metadata alone: nothing is imported."""
    return {
        "target": row.target or "not built by Torchkiln, or its row is missing",
        "python": f"{platform.python_version()} at {sys.executable}",
        "packages": {name: version for name in PACKAGES for version in _version(name)},
        "user": f"{os.getuid()}:{os.getgid()} ({_name()})",
    }


def surroundings(environ: Mapping[str, str], facts: Mapping[str, Any], row: expect.Expect) -> list[Advice]:
    """Advice from the environment and the host alone; pure."""
    found = [Advice(f"{name} is set: {what}", do) for name, (what, do) in VARIABLES.items() if environ.get(name)]
    shm = facts["shm"]["total_bytes"]
    if shm is not None and shm < SHM:
        found.append(
            Advice(
                f"shared memory is {shm >> 20} MB: data-loader workers and NCCL may die with a bus error",
                "--shm-size=2g",
            )
        )
    if row.gpu_row and not facts["devices"]:
        found.append(Advice("no GPU device is visible in this container", REMEDY[row.kind]))
    return found


VARIABLES = {
    "TORCH_COMPILE_CACHE_DIR": ("PyTorch reads no such variable", "set TORCHINDUCTOR_CACHE_DIR instead"),
    "TORCHDYNAMO_DISABLE": ("torch.compile does nothing", "unset it"),
    "TORCHDYNAMO_SUPPRESS_ERRORS": ("compile errors fall back to eager unseen", "unset it"),
    "LD_LIBRARY_PATH": ("it goes before the libraries that torch brought", "unset it unless you know why it is there"),
    "PYTHONPATH": ("modules there go before the image's", "unset it unless you know why it is there"),
    "HSA_OVERRIDE_GFX_VERSION": ("kernels of another GPU are forced", "unset it on GPUs that the wheels support"),
}
REMEDY = {
    "cuda": "docker run --gpus all, with the NVIDIA container toolkit on the host",
    "rocm": "docker run --device /dev/kfd --device /dev/dri --group-add video --group-add render",
}


def report(
    image: Mapping[str, Any], facts: Mapping[str, Any], advice: Sequence[Advice], answers: Sequence[Answer], said: str
) -> Iterable[str]:
    """Lines for people: the image, the host, then each cause with its remedy."""
    packages = ", ".join(f"{name} {version}" for name, version in image["packages"].items())
    yield f"image     {image['target']}; Python {image['python']}; {packages}"
    yield f"user      {image['user']}"
    memory = (facts["memory_bytes"] or 0) >> 30
    yield f"host      {facts['processor']}; {facts['cpus']:g} CPUs, {memory} GB; kernel {facts['kernel']}"
    yield f"compile   {facts['compile_workers']} workers, {facts['threads']} threads"
    yield f"GPU       {', '.join(facts['devices']) or 'none visible'}"
    yield ""
    for item in advice:
        yield f"note      {item.what}\n          do: {item.do}"
    for answer in answers:
        if answer.reason == "not selected" or not answer.applicable:
            continue
        yield f"{answer.status:<12}{answer.id:<22}{answer.reason or answer.title}"
        if answer.status not in {PASS, NOT_RUN}:
            yield f"            do: {answer.explanation}"
    failures = sum(answer.status == FAIL for answer in answers)
    yield f"\nverdict: {said}" + (f", {failures} to repair" if failures else "")


def _version(name: str) -> list[str]:
    try:
        return [metadata.version(name)]
    except metadata.PackageNotFoundError:
        return []


def _name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "no passwd row"
