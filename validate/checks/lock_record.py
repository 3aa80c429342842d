"""The files of the installed packages are those that their wheels brought."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="files equal their RECORD",
    explanation="A file of a package was changed, replaced or deleted after installation, or two packages wrote the "
    "same path. Build again; in a derived image look at what overwrites the named file.",
    needs=("lock.installed",),
    seconds=300,
)
HASHED_WHOLE = ("torch", "torchvision", "torchaudio")
"""Of the others sizes, and the hashes of their small files, are compared: it is the trio that gets overwritten."""
SMALL = 256 << 10
CHUNK = 1 << 20


def run(_expect: Expect, _context: Context) -> Result:
    """Every line of every RECORD."""
    problems, files = [], 0
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        record = distribution.read_text("RECORD")
        if record is None:
            if not _of_the_system(distribution):
                problems.append(f"{name} has no RECORD")
            continue
        for path, hashed, size in rows(record):
            if "/__pycache__/" in path:
                continue  # any interpreter that may write replaces it; some wheels ship one
            files += 1
            full = Path(str(distribution.locate_file(path)))
            problem = difference(full, hashed, size, whole=name in HASHED_WHOLE)
            problems += [f"{path} of {name} {problem}"] if problem else []
    if problems:
        return failed(f"{len(problems)} files differ: {'; '.join(problems[:5])}", files=files, problems=problems[:100])
    return passed(f"{files} files", files=files)


def rows(record: str) -> Iterator[tuple[str, str, str]]:
    """(path, hash, size) of each line (the wheel format's RECORD: CSV)."""
    for row in csv.reader(record.splitlines()):
        if row:
            path, hashed, size = (*row, "", "")[:3]
            yield path, hashed, size


def difference(path: Path, hashed: str, size: str, *, whole: bool) -> str:
    """What is wrong with a file, in words; empty if nothing is."""
    if not path.is_file():
        return "is missing"
    found = path.stat().st_size
    if size and found != int(size):
        return f"has {found} bytes, RECORD says {size}"
    if hashed and (whole or found <= SMALL) and digest(path, hashed.partition("=")[0]) != hashed.partition("=")[2]:
        return "has another hash than RECORD says"
    return ""


def digest(path: Path, algorithm: str) -> str:
    """Unpadded base64 as in RECORD."""
    state = hashlib.new(algorithm)
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            state.update(piece)
    return base64.urlsafe_b64encode(state.digest()).rstrip(b"=").decode()


def _of_the_system(distribution: metadata.Distribution) -> bool:
    """Debian's own packages, whose files dpkg knows, have none."""
    return "dist-packages" in str(distribution.locate_file(""))
