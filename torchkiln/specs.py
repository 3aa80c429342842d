"""What each layer of an image is made from, and the key that names exactly that; pure.

A key is a digest of what goes in and of the version of the layer format, so a change of either never serves an old
layer. Nothing here reads a file or a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torchkiln.lock import baselock
from torchkiln.oci import digest as digests
from torchkiln.oci.compression import GZIP
from torchkiln.oci.image import canonical

if TYPE_CHECKING:
    from torchkiln.lock.baselock import BaseLock
    from torchkiln.lock.lockfile import Pin
    from torchkiln.matrix.target import Base
    from torchkiln.oci.compression import Compression
    from torchkiln.oci.image import Layer

LAYER_TIME = 315619200
"""1980-01-02T00:00:00Z, the time of every file: zip cannot hold 1979, which 1980-01-01 is west of UTC."""
INTERPRETER = "/usr/bin/python3"
"""Where Debian's and most other bases have it."""


def _key(kind: str, version: int, inputs: dict[str, Any]) -> str:
    document = canonical({"kind": kind, "format": version, **inputs})
    return f"{kind}-{digests.encoded(digests.of_bytes(document))}"


def compressed_key(key: str, compression: Compression) -> str:
    """The key of a layer in a compression: the spec's own for gzip, as which layers are made first."""
    if compression == GZIP:
        return key
    return f"{key}.{compression.kind}-{compression.level}-{compression.FORMAT}"


def _named(pins: tuple[Pin, ...]) -> str:
    first, *others = [f"{pin.name} {pin.version}" for pin in pins]
    return f"{first} and {len(others)} more" if others else first


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSpec:
    """The userland."""

    FORMAT: ClassVar[int] = 2
    base: Base
    lock: BaseLock
    recipe: str = ""
    """Digest of the files of images/bases/<kind>; the builder refuses a spec that names others."""
    arch: str = "x86_64"
    """Machine whose packages it holds, as `uname -m` says."""
    relock: str = field(default=baselock.COMMAND, compare=False)
    """The command that accepts what the archive has now; no part of the key."""

    @property
    def key(self) -> str:
        """Recipe and expected packages."""
        base = self.base
        recipe = [self.recipe, base.kind, base.suite, self.arch, base.python, base.mirror, *sorted(base.packages)]
        keys = {"keyring": base.keyring} if base.keyring else {}  # whom the packages were believed from
        inputs = {"recipe": recipe, "components": list(base.components), "lock": self.lock.digest, **keys}
        return _key("base", self.FORMAT, inputs)

    @property
    def title(self) -> str:
        """For people."""
        return f"base {self.base.name}"


def adopted(base: Base) -> str:
    """The title of the layer that completes an image that others made: all below it is theirs."""
    return f"base {base.name}, user and folders"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSpec:
    """One layer of an image that others made, as it is."""

    FORMAT: ClassVar[int] = 1
    base: Base
    layer: Layer
    number: int
    count: int

    @property
    def key(self) -> str:
        """The layer itself."""
        return _key("foreign", self.FORMAT, {"digest": self.layer.descriptor.digest, "diff_id": self.layer.diff_id})

    @property
    def title(self) -> str:
        """For people."""
        return f"base {self.base.name}, layer {self.number} of {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionSpec:
    """What our images need and an image that others made has not: a user and folders."""

    FORMAT: ClassVar[int] = 1
    base: Base
    lock: BaseLock
    recipe: str = ""
    """Digest of the files of images/bases/foreign."""
    arch: str = "x86_64"
    relock: str = field(default=baselock.COMMAND, compare=False)
    """The command that accepts what the image has now; no part of the key."""

    @property
    def key(self) -> str:
        """The layers below, what is laid over them, and what they are held against."""
        base = self.base
        below = [layer.diff_id for layer in self.lock.layers]
        held = [self.recipe, self.arch, base.python, base.glibc, base.interpreter, *sorted(base.packages)]
        return _key("adoption", self.FORMAT, {"layers": below, "held": held})

    @property
    def title(self) -> str:
        """For people."""
        return adopted(self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the files of wheels that are too big for one layer."""

    FORMAT: ClassVar[int] = 1
    """Of the rule by which files are shared out (layers/parts.py)."""
    number: int
    """From 1. What turns out to need fewer parts has empty ones, which no image holds."""
    max_bytes: int
    """Of the blob of each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSpec:
    """The files of wheels, without bytecode."""

    FORMAT: ClassVar[int] = 1
    pins: tuple[Pin, ...]
    part: Part | None = None
    """None: all of them."""

    @property
    def key(self) -> str:
        """Wheels alone: the same layer for every row, base and Python that uses them."""
        part = {"part": [self.part.FORMAT, self.part.number, self.part.max_bytes]} if self.part else {}
        return _key("wheel", self.FORMAT, {"wheels": [pin.sha256 for pin in self.pins], **part})

    @property
    def title(self) -> str:
        """For people."""
        return f"{_named(self.pins)}{f', part {self.part.number}' if self.part else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BytecodeSpec:
    """What an interpreter compiles from the modules of wheels."""

    FORMAT: ClassVar[int] = 1
    pins: tuple[Pin, ...]
    python: str
    """Full version of the base's interpreter: the compiler's output may change between patch releases."""
    image: str = ""
    """Names the image that others made whose interpreter compiles: what it writes gets into no row on another base."""

    @property
    def key(self) -> str:
        """Wheels and interpreter."""
        whose = {"image": self.image} if self.image else {}
        wheels = [pin.sha256 for pin in self.pins]
        return _key("bytecode", self.FORMAT, {"wheels": wheels, "python": self.python, **whose})

    @property
    def title(self) -> str:
        """For people."""
        return f"bytecode of {_named(self.pins)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """/opt/venv around the wheels, and the protection of the trio."""

    FORMAT: ClassVar[int] = 6
    python: str
    """Minor, for example `3.11`."""
    protected: tuple[str, ...]
    """Constraints such as `torch==2.5.1`."""
    interpreter: str = INTERPRETER
    """Where the base's Python is."""

    @property
    def key(self) -> str:
        """Python minor and constraints, and the interpreter's place where it is an unusual one."""
        place = {} if self.interpreter == INTERPRETER else {"interpreter": self.interpreter}
        return _key("environment", self.FORMAT, {"python": self.python, "protected": list(self.protected), **place})

    @property
    def title(self) -> str:
        """For people."""
        return "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSpec:
    """The validation suite, for users: `torchkiln-doctor`."""

    FORMAT: ClassVar[int] = 1
    files: tuple[tuple[str, str], ...]
    """(path below validate/, sha256 hex), sorted."""
    expectation: bytes
    """What the suite holds this row against, as JSON, for users' own runs."""

    @property
    def key(self) -> str:
        """Content of the suite and of what it expects."""
        expectation = digests.of_bytes(self.expectation)
        return _key("suite", self.FORMAT, {"files": [list(file) for file in self.files], "expectation": expectation})

    @property
    def title(self) -> str:
        """For people."""
        return "validation suite"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitSpec:
    """/opt/cuda: links to NVIDIA's wheels, in the layout that compilers look for."""

    FORMAT: ClassVar[int] = 1
    pins: tuple[Pin, ...]
    archs: str
    """As TORCH_CUDA_ARCH_LIST has it, for login shells."""

    @property
    def key(self) -> str:
        """Wheels, and what is compiled for."""
        return _key("toolkit", self.FORMAT, {"wheels": [pin.sha256 for pin in self.pins], "archs": self.archs})

    @property
    def title(self) -> str:
        """For people."""
        return "CUDA toolkit"


LayerSpec = BaseSpec | ForeignSpec | AdoptionSpec | WheelSpec | BytecodeSpec | EnvironmentSpec | ToolkitSpec | SuiteSpec


def key_in_image(spec: LayerSpec, compression: Compression) -> str:
    """The key of a layer as an image of that compression has it: what others made stays as it is."""
    return spec.key if isinstance(spec, ForeignSpec) else compressed_key(spec.key, compression)
