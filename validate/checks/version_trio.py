"""torchvision, torchaudio and triton are those of the lock, built for the row's accelerator."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="torchvision, torchaudio and triton belong to this torch",
    explanation="A companion was built for another torch or accelerator; its operators fail or crash later. Install "
    "the versions of the lock.",
    seconds=30,
)
COMPANIONS = ("torchvision", "torchaudio")
VERSION = re.compile(r"^__version__.*?=\s*[\"']([^\"']+)", re.MULTILINE)
COMPILERS = ("triton", "pytorch-triton-rocm", "pytorch-triton")


def applies(expect: Expect) -> bool:
    """Rows with a companion in the lock."""
    return any(name in expect.pins for name in (*COMPANIONS, *COMPILERS))


def run(expect: Expect, _context: Context) -> Result:
    """Metadata as in the lock; the version that a companion's own files state, with the row's suffix."""
    found, problems = {}, []
    for name in (*COMPANIONS, *COMPILERS):
        if name not in expect.pins:
            continue
        found[name] = installed(name)
        if public(found[name]) != public(expect.pins[name]):
            problems.append(f"{name} {found[name] or 'is missing'}, the lock says {expect.pins[name]}")
        elif name in COMPANIONS:
            problems += _suffix(name, expect)
    return failed("; ".join(problems), found=found) if problems else passed(found=found)


def _suffix(name: str, expect: Expect) -> list[str]:
    stated = _stated(name)
    suffix = stated.partition("+")[2]
    wanted = getattr(expect, name)
    problems = [] if public(stated) == wanted else [f"{name} calls itself {stated or 'nothing'}, the row says {wanted}"]
    if suffix != expect.accelerator:
        problems.append(f"{name} {stated} is built for {suffix or 'nothing stated'}, the row says {expect.accelerator}")
    return problems


def _stated(name: str) -> str:
    """What the package's version.py says, read as text: running it would import torch."""
    path = Path(str(metadata.distribution(name).locate_file(f"{name}/version.py")))
    match = VERSION.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return match[1] if match else ""


def installed(name: str) -> str:
    """The version in the metadata; empty if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def public(version: str) -> str:
    """Without the local suffix."""
    return version.partition("+")[0]
