"""Whole images out of toy wheels, over a base that holds a folder: all stages run, and none needs a network."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.kiln import ROOT
from torchkiln import assembly
from torchkiln.layers import bytecode, suite
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.layers.base import debian
from torchkiln.lock import baselock, lockfile
from torchkiln.lock.lockfile import Inputs
from torchkiln.matrix.target import Base
from torchkiln.oci.compression import GZIP
from torchkiln.oci.image import Config
from torchkiln.plan import ImagePlan
from torchkiln.project import Project
from torchkiln.specs import BaseSpec, BytecodeSpec, EnvironmentSpec, WheelSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.oci.compression import Compression
    from torchkiln.oci.image import Image, Layer
    from torchkiln.specs import LayerSpec

PYTHON = platform.python_version()
"""Of the bases of toys, which hold none: this one compiles in its place, as where a base's own does not start."""
MINOR = bytecode.minor_of(PYTHON)
OTHER = f"{MINOR}.99"
"""Another patch release."""
BASE = BaseSpec(
    base=Base(id="toys", kind="debian", suite="bookworm", python=MINOR, glibc="2.36", packages=("python3",)),
    lock=baselock.make([(f"libpython{MINOR}-minimal", f"{PYTHON}-6")]),
    recipe=debian.recipe().digest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of toys: its wheels, over a base that was made before."""

    project: Project
    lock: Lock
    base: BaseSpec = BASE
    stages: dict[str, float] = field(default_factory=dict)
    compression: Compression = GZIP

    @property
    def plan(self) -> ImagePlan:
        """A layer for each wheel and one for its bytecode, the environment, the suite."""
        pins = self.lock.pins
        environment = EnvironmentSpec(python=MINOR, protected=())
        return ImagePlan(
            target="row",
            layers=(
                self.base,
                *(WheelSpec(pins=(pin,)) for pin in pins),
                environment,
                *(BytecodeSpec(pins=(pin,), python=self.base.lock.python) for pin in pins),
                replace(suite.spec(self.project.suite), expectation=b"{}"),
            ),
            config=Config(),
            compression=self.compression,
        )

    def assemble(
        self,
        made: Callable[[LayerSpec, Layer], None] = lambda _spec, _layer: None,
        *,
        verify: bool = False,
        remote: Mapping[str, Layer] | None = None,
    ) -> tuple[ImagePlan, Image]:
        """Build it."""
        options = {"verify": verify, "remote": remote or {}, "made": made}
        return assembly.assemble(
            self.project,
            self.plan,
            self.lock,
            frozen=False,
            stages=self.stages,
            **options,  # type: ignore[arg-type]
        )


def row(home: Home, root: Path, pins: Iterable[Pin], environment: Mapping[str, str], base: BaseSpec = BASE) -> Row:
    """A row of these pins in a checkout at `root`, which lends this one's suite."""
    if not (root / "validate").exists():
        (root / "validate").symlink_to(ROOT / "validate")
    project = Project(root=root, home=home, environment=environment)
    make_base(project, base)
    return Row(project=project, lock=lock_of(pins), base=base)


def lock_of(pins: Iterable[Pin]) -> Lock:
    """The lock of these pins."""
    return lockfile.make(Inputs(requirements=("one",), python=MINOR, platform="x86_64 glibc 2.36"), list(pins), "uv")


def holding(python: str, base: BaseSpec = BASE) -> BaseSpec:
    """The base with another version of Python."""
    return replace(base, lock=baselock.make([(f"libpython{MINOR}-minimal", f"{python}-1")]))


def make_base(project: Project, spec: BaseSpec, *, packages: Iterable[tuple[str, str]] | None = None) -> Layer:
    """Let the cache have the base, with the packages of its lock or others."""
    held = [list(package) for package in (spec.lock.packages if packages is None else packages)]
    status = "".join(f"Package: {name}\nStatus: install ok installed\nVersion: {version}\n\n" for name, version in held)
    folders = [Entry(path=path, kind="directory", mode=0o755) for path in ("etc", "var", "var/lib", "var/lib/dpkg")]
    database = Entry(path="var/lib/dpkg/status", kind="file", mode=0o644)
    layer = write_layer(project.store, spec.title, [*((one, None) for one in folders), (database, status.encode())])
    project.home.record(spec.key, {**layer.to_json(), "packages": held})
    return layer
