"""matrix.yaml as it is written: the models that pydantic holds it against, and what each mistake is called.

Only schema.py uses these; inside Torchkiln a row is a Target.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from pydantic_core import ErrorDetails

PLAIN = {"missing": "is missing", "too_short": "is empty, so nothing would be built: name at least one"}
"""What pydantic's kinds of mistake are called here."""
Loc = tuple[int | str, ...]


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version") from None
    return text


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement:
        raise ValueError(f"{text!r} is not a requirement such as numpy>=2") from None
    return text


def _by_digest(text: str) -> str:
    if not re.fullmatch(r"[^/@\s]+/[^@\s]+@sha256:[0-9a-f]{64}", text):
        raise ValueError(f"{text!r} is not HOST/REPOSITORY@sha256:…: a tag may move, a digest does not")
    return text


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*$")]
"""No dashes, so that ids made of names never clash."""
Versioned = Annotated[str, AfterValidator(_version)]
Requires = Annotated[str, AfterValidator(_requirement)]
Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]


Names = Annotated[list[str], Field(min_length=1)]


class Strict(BaseModel):
    """No key that is not declared, no value of another type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


Python = Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]


class AnyBaseEntry(Strict):
    """What every one of `bases` states."""

    python: Python
    """The minor of its Python, for example '3.11'."""
    glibc: Versioned
    """Version of its C library: wheels for a newer one don't run on it."""
    default: bool = False
    """Whether ids leave this base out; exactly one does."""


class DebianEntry(AnyBaseEntry):
    """A userland of Debian or Ubuntu, assembled by mmdebstrap."""

    kind: Literal["debian"]
    """Assembled from the packages of an archive."""
    suite: str
    """Release of the distribution, for example bookworm."""
    packages: list[Package]
    """What is installed beside the essential packages."""
    components: list[Package] = ["main"]
    """Parts of the archive that are looked in."""
    mirror: str = ""
    """Where packages come from; empty: the client's default. A dated one never moves on."""
    keyring: str = ""
    """File with the archive's keys on the building machine; empty: the client's default for the suite."""


class RegistryEntry(AnyBaseEntry):
    """An image that is pulled."""

    kind: Literal["registry"]
    """Pulled by digest."""
    image: Annotated[str, AfterValidator(_by_digest)]
    """HOST/REPOSITORY@sha256:…: a tag may move, a digest does not."""
    interpreter: Annotated[str, StringConstraints(pattern=r"^/")] = "/usr/bin/python3"
    """Where its Python is, in the image."""


class DockerfileEntry(AnyBaseEntry):
    """An image that the Docker engine builds from images/<name>/Dockerfile."""

    kind: Literal["dockerfile"]
    """Built from images/<name>/Dockerfile."""
    interpreter: Annotated[str, StringConstraints(pattern=r"^/")] = "/usr/bin/python3"
    """Where its Python is, in the image."""


BaseEntry = Annotated[DebianEntry | RegistryEntry | DockerfileEntry, Field(discriminator="kind")]


class ReleaseEntry(Strict):
    """One of `releases`."""

    torch: Versioned
    """Public version, without the accelerator's suffix."""
    torchvision: Versioned | None = None
    """Its pair; left out where rows go without."""
    torchaudio: Versioned | None = None
    """Its pair; left out where rows go without."""
    companions: list[Requires] = []
    """What no wheel declares but the image needs, or what has to be bounded (PEP 508)."""


class AcceleratorEntry(Strict):
    """One of `accelerators`."""

    kind: Literal["cuda", "rocm", "cpu"]
    """Whose toolkit the wheels were built with."""
    version: Versioned | None = None
    """Of CUDA or ROCm, for example '12.4'; left out for cpu."""
    run_options: list[str] = []
    """Options of `docker run` that its images need."""


class SizingEntry(Strict):
    """Size of the hosts that a GPU row is meant for."""

    cores: int = 0
    """Of the CPU."""
    memory_gb: int = 0
    """Of the host."""
    system_disk_gb: int = 0
    """Holds images and containers."""
    data_disk_gb: int = 0
    """Holds data sets and checkpoints."""


class GpuEntry(Strict):
    """One of `gpus`."""

    arch: str = ""
    """For example sm_90 or gfx942; empty for a row that fits any."""
    memory_gb: int = 0
    """Of one device."""
    driver: Versioned | None = None
    """Driver that hosts of these rows are known to run."""
    run_options: list[str] = []
    """Options of `docker run`, beside the accelerator's."""
    sizing: SizingEntry = SizingEntry()
    """Size of the hosts."""
    thresholds: dict[str, float] = {}
    """Figures that checks hold measurements against, by name."""


class FlavourEntry(Strict):
    """One of `flavours`."""

    requirements: list[Requires] = []
    """Wheels that it adds for every accelerator (PEP 508)."""
    packages: list[Package] = []
    """Packages that it adds to the base; kind debian only."""
    accelerators: dict[Name, list[Requires]] = {}
    """What is added for each accelerator; where this is stated, the flavour can't be had for any other."""


class ValidationEntry(Strict):
    """What every row is held against unless it says otherwise."""

    required: list[str] = ["*"]
    """Globs over check ids; what does not apply to a row is never required."""
    thresholds: dict[str, float] = {}
    """Figures that checks hold measurements against, by name; a GPU may state its own."""


class ProductEntry(Strict):
    """One of `targets`."""

    releases: Names
    """Names of `releases`."""
    accelerators: Names
    """Names of `accelerators`."""
    gpus: Names = ["generic"]
    """Names of `gpus`; `generic` is left out of ids."""
    flavours: Names = ["runtime"]
    """Names of `flavours`; `runtime` is left out of ids."""
    bases: Names
    """Names of `bases`; the default one is left out of ids."""
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    """Machine, as `uname -m` says."""
    without: list[Literal["torchvision", "torchaudio"]] = []
    """Of the trio, what these rows go without."""
    required: list[str] | None = None
    """Globs over check ids, instead of those of `validation`."""
    exclude: list[str] = []
    """Ids and globs of rows that are not built; each must exclude something."""
    extra: str = ""
    """A file of requirements that these rows add, relative to the matrix."""


class Document(Strict):
    """The whole file."""

    bases: dict[Name, BaseEntry]
    """Userlands below the wheels, by name."""
    releases: dict[Name, ReleaseEntry]
    """PyTorch releases, by name: what belongs together."""
    accelerators: dict[Name, AcceleratorEntry]
    """What wheels are built for, by name: cu124, rocm62, cpu."""
    gpus: dict[Name, GpuEntry]
    """Devices that rows are meant for, by name."""
    flavours: dict[Name, FlavourEntry]
    """What images are for, by name, as what is added."""
    validation: ValidationEntry = ValidationEntry()
    """What every row is held against."""
    targets: Annotated[list[ProductEntry], Field(min_length=1)]
    """Products: every release with every accelerator, GPU, flavour and base."""


class WrittenFloat(float):
    """A YAML number that remembers how it was written: 12.10 is 12.1 to everybody else."""

    text = ""


class Loader(yaml.CSafeLoader):
    """Safe YAML that collects duplicate keys instead of letting the last one win."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  as in the base class
        """As in PyYAML, but a key that stands twice is remembered."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in lines:
                self.duplicates.append(f"line {line}: key {key.value!r} is on line {lines[key.value]} already")
            elif isinstance(key, yaml.ScalarNode):
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def _float(loader: Loader, node: yaml.ScalarNode) -> WrittenFloat:
    number = WrittenFloat(loader.construct_yaml_float(node))
    number.text = node.value
    return number


def _int(_loader: Loader, node: yaml.ScalarNode) -> int | str:
    """Plain decimals only; YAML 1.1 would read 12:40 as 760 and 010 as 8."""
    plain = node.value.isdecimal() and not (node.value.startswith("0") and node.value != "0")
    return int(node.value) if plain else str(node.value)


Loader.add_constructor("tag:yaml.org,2002:float", _float)
Loader.add_constructor("tag:yaml.org,2002:int", _int)


def parse(data: bytes) -> tuple[Document | None, list[str]]:
    """The document, or every problem with it in words."""
    loader = Loader(data)
    try:
        found = loader.get_single_data()
    except yaml.YAMLError as error:
        return None, [" ".join(str(error).split())]
    try:
        document = Document.model_validate(found)
    except ValidationError as error:
        return None, [*loader.duplicates, *(_told(problem) for problem in error.errors())]
    return (None, loader.duplicates) if loader.duplicates else (document, [])


def path(loc: Loc) -> str:
    """A key path as people write it: `targets[0].releases[1]`; kinds, which pydantic puts into it, are left out."""
    text, kind = "", cast("Any", Document)
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]" and part not in _kinds(kind):
            text += f".{part}"
        kind = _member(kind, part)
    return text.removeprefix(".") or "the file"


def nearest(word: str, legal: Iterable[str]) -> str:
    """`; nearest: …` or, when nothing is near, `; legal: …`."""
    known = sorted(legal)
    near = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; nearest: {near[0]}" if near else f"; legal: {', '.join(known) or 'none'}"


def _told(problem: ErrorDetails) -> str:
    loc = problem["loc"]
    if problem["type"].startswith("union_tag"):  # of an entry whose `kind` says what else belongs into it
        tag, legal = problem.get("ctx", {}).get("tag"), _kinds(_at(loc))
        fault = f"{tag!r} is not known{nearest(tag, legal)}" if tag else f"is missing: one of {', '.join(legal)}"
        return f"{path((*loc, 'kind'))}: {fault}"
    return f"{path(loc)}: {_fault(problem)}"


def _fault(problem: ErrorDetails) -> str:
    kind, value, loc = problem["type"], problem["input"], problem["loc"]
    if kind in PLAIN:
        return PLAIN[kind]
    if kind == "extra_forbidden":
        return f"unknown key{nearest(str(loc[-1]), legal_keys(loc[:-1]))}"
    if kind == "string_type" and isinstance(value, (int, float)) and not isinstance(value, bool):
        text = getattr(value, "text", str(value))
        return f"{text} is a number to YAML, and numbers lose digits: write '{text}' in quotes"
    if kind == "literal_error":
        legal = str(problem.get("ctx", {}).get("expected", "")).replace(" or ", ", ").replace("'", "").split(", ")
        return f"{value!r} is not known{nearest(str(value), legal)}"
    if kind == "string_pattern_mismatch" and loc[-1] == "[key]":
        return f"{value!r} is not a name: lower-case letters and digits, letter first, no dashes"
    message = problem["msg"].removeprefix("Value error, ")
    if kind in {"model_type", "dict_type"}:
        message = f"{'is empty' if value is None else f'holds {value!r:.60}'}; keys belong here{_keys(loc)}"
    return message[0].lower() + message[1:]


def _keys(loc: Loc) -> str:
    keys = legal_keys(loc)
    return f": {', '.join(keys)}" if keys else ""


def legal_keys(loc: Loc) -> Sequence[str]:
    """The keys that the model at a location declares."""
    kind = _at(loc)
    return tuple(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else ()


def _at(loc: Loc) -> Any:  # noqa: ANN401  annotations are values of no common type
    kind: Any = Document
    for part in loc:
        kind = _member(kind, part)
    return kind


def _member(kind: Any, part: int | str) -> Any:  # noqa: ANN401  annotations are values of no common type
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(str(part))
        return field.annotation if field else None
    if kinds := _kinds(kind):
        return kinds.get(str(part))
    return get_args(kind)[-1] if get_origin(kind) in {dict, list} else None


def _kinds(kind: Any) -> Mapping[str, type[BaseModel]]:  # noqa: ANN401  as above
    """The models among which the key `kind` decides, by its value."""
    models = get_args(get_args(kind)[0]) if get_origin(kind) is Annotated else ()
    entries = [model for model in models if isinstance(model, type) and issubclass(model, BaseModel)]
    return {get_args(model.model_fields["kind"].annotation)[0]: model for model in entries}
