"""The validation suite in the image, for users: `docker run IMAGE torchkiln-doctor`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from torchkiln.errors import ImageError
from torchkiln.layers.archive import Entry, order, write_layer
from torchkiln.specs import SuiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.layers.archive import Content
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store

FOLDER = "opt/torchkiln"
EXPECTATION = f"{FOLDER}/expect.json"
LAUNCHER = "usr/local/bin/torchkiln-doctor"
_LAUNCHER = """\
#!/bin/sh
# What is right and wrong with this image on this host; --json for machines.
exec /opt/venv/bin/python -P -B /opt/torchkiln/validate doctor --expect /opt/torchkiln/expect.json "$@"
"""


def spec(validate: Path, expectation: bytes = b"{}") -> SuiteSpec:
    """What the layer is made from: the suite as it lies in the checkout, and what it holds a row against."""
    files = ((str(path.relative_to(validate)), _sha256(path.read_bytes())) for path in sources(validate))
    return SuiteSpec(files=tuple(files), expectation=expectation)


def sources(validate: Path) -> list[Path]:
    """The suite's files, sorted by name; neither bytecode nor anything hidden."""
    found = (path for path in validate.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(_is_by_product(part) for part in path.relative_to(validate).parts))


def _is_by_product(part: str) -> bool:
    return part == "__pycache__" or part.startswith(".")


def entries(validate: Path, spec: SuiteSpec) -> list[tuple[Entry, Content]]:
    """What the layer holds, sorted; ImageError if the suite changed since it was planned."""
    found: list[tuple[Entry, Content]] = [
        (Entry(path=EXPECTATION, kind="file", mode=0o644), spec.expectation),
        (Entry(path=LAUNCHER, kind="file", mode=0o755), _LAUNCHER.encode()),
    ]
    for name, sha256 in spec.files:
        data = (validate / name).read_bytes()
        if _sha256(data) != sha256:
            raise ImageError("the suite changed while it was packed", where=name, remedy="build again")
        found.append((Entry(path=f"{FOLDER}/validate/{name}", kind="file", mode=0o644), data))
    return sorted(found, key=lambda pair: order(pair[0].path))


def build(store: Store, spec: SuiteSpec, validate: Path) -> Layer:
    """The layer with the suite, the expectation and the launcher."""
    return write_layer(store, spec.title, entries(validate, spec))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
